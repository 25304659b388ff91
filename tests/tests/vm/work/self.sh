echo 500 >/proc/self/oom_score_adj
echo 500 >/proc/$$/oom_score_adj
cat /proc/$$/oom_score_adj
echo 0x23 >/proc/$$/coredump_filter
cat /proc/$$/coredump_filter
printf renamed >/proc/$$/comm
cat /proc/$$/comm
ps -o comm= -p $$
sleep 100 & kill %1; wait %1 || echo "killed $?"
nice -n 5 nice
renice -n 6 -p $$ >/dev/null; nice
taskset -p $$ | sed 's/.*: //'
ulimit -n 100; ulimit -n
prlimit --pid $$ --nofile=50; ulimit -n
timeout 5 true; setsid -w true
python3 -c 'import os, signal; os.kill(os.getpid(), 0); os.setpgid(0, 0); print(os.sched_getaffinity(0)); os.setpriority(os.PRIO_PROCESS, 0, 7)'
strace -f -e trace=none -o /dev/null true
cat /proc/self/cgroup | wc -l
grep -c processor /proc/cpuinfo
id -un; getent passwd dev | cut -d: -f1; hostname
