script -qec 'test -t 0 && tty | sed "s/[0-9]*$/N/"; stty size; echo typed >/dev/tty' typescript </dev/null | tr -d '\r'
python3 - <<'END'
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", "read line; echo got $line; test -t 1 && echo terminal"])
os.write(fd, b"x\n")
out = b""
while True:
    try: chunk = os.read(fd, 1024)
    except OSError: break
    if not chunk: break
    out += chunk
print(out.replace(b"\r", b""), os.waitpid(pid, 0)[1])
m, s = pty.openpty(); os.write(s, b"a"); print(os.read(m, 1), os.ttyname(s).startswith("/dev/pts/"))
END
