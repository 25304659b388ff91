ulimit -c unlimited
(sh -c 'kill -SEGV $$'; exit $?) 2>/dev/null || echo "status $?"
file core | grep -o 'ELF 64-bit LSB core file'
