printf 'one\ntwo\nthree\n' >f
sed -i s/two/2/ f
vim.tiny -u NONE -es -c '1d' -c 'wq' f
vim.tiny -u NONE -es -c 'set backup writebackup backupcopy=no' -c '$s/three/3/' -c 'wq' f
cat f
printf 'x\n' >.f.new && mv .f.new g
cp -a f h
ln h i
ln -s h j
install -m 750 h k
truncate -s 10 l
dd if=/dev/zero of=m bs=4096 count=2 status=none
touch -d 2024-01-01 n
chmod 600 n
mkfifo p
(cat <p >q) &
echo through >p
wait
diff <(sort f) <(sort h)
mkdir -p d/e/f
rm -r d
python3 - <<'END'
import os, tempfile
with tempfile.NamedTemporaryFile(dir=".", delete=False) as f:
    f.write(b"atomic\n"); f.flush(); os.fsync(f.fileno())
os.replace(f.name, "atomic"); os.chmod("atomic", 0o644)
fd = os.open(".", os.O_TMPFILE | os.O_RDWR); os.write(fd, b"unnamed\n")
os.link(f"/proc/self/fd/{fd}", "named", src_dir_fd=fd, follow_symlinks=True)
os.chmod("named", 0o644)
os.setxattr("named", "user.note", b"1"); print(os.getxattr("named", "user.note")); os.removexattr("named", "user.note")
END
cat named
