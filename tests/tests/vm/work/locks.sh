exec 9>lock
flock 9
! flock -n lock true
flock -u 9
flock -n lock echo locked
cat >work.py <<'END'
import ctypes, fcntl, mmap, os, select, struct, threading
from multiprocessing import shared_memory, Process, Queue, Lock
f = open("data", "w+b"); f.write(b"x" * 8192); f.flush()
fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
pid = os.fork()
if pid == 0:
    g = open("data", "r+b")
    try: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0); print("not locked")
    except OSError as e: print(type(e).__name__)
    os._exit(0)
os.waitpid(pid, 0)
m = mmap.mmap(f.fileno(), 8192); m[0:4] = b"mmap"; m.flush()
libc = ctypes.CDLL(None, use_errno=True)
i = libc.inotify_init1(0); assert libc.inotify_add_watch(i, b".", 0x100) > 0
open("watched", "w").close()
select.select([i], [], [], 10); print(os.read(i, 4096)[16:].rstrip(b"\0"))
e = libc.eventfd(0, 0); os.write(e, struct.pack("Q", 7)); print(struct.unpack("Q", os.read(e, 8)))
fd = os.memfd_create("code"); os.write(fd, b"#!/bin/sh\necho from memory\n")
print(open(f"/proc/self/fd/{fd}").read().splitlines()[1])
b = os.memfd_create("binary"); os.write(b, open("/bin/true", "rb").read())
pid = os.fork()
if pid == 0: os.execve(b, ["true"], {})
print(os.waitpid(pid, 0)[1])
s = shared_memory.SharedMemory(create=True, size=16); s.buf[0] = 42
def child(name, q, lock):
    with lock: t = shared_memory.SharedMemory(name); q.put(t.buf[0]); t.close()
q, lock = Queue(), Lock(); p = Process(target=child, args=(s.name, q, lock)); p.start(); print(q.get()); p.join()
s.close(); s.unlink()
r, w = os.pipe(); print(os.path.exists(f"/dev/fd/{r}"), os.stat("/dev/stdout") is not None)
END
python3 work.py 2>&1
cat <(echo substituted)
echo nothing >/dev/null
head -c 4 /dev/zero | wc -c
head -c 4 /dev/urandom | wc -c
