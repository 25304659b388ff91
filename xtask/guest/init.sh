#!/bin/bash
# The guest's process 1: what an init system would set up, then sandboxd, then
# the one command of this run, then power off. Its counterpart is `vm.rs`.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root USER=root LOGNAME=root LANG=C.UTF-8
vm=/run/vm

port() { # the device of the virtio serial port named $1
	local name
	for name in /sys/class/virtio-ports/*/name; do
		[[ $(<"$name") == "$1" ]] && {
			name=${name%/name}
			echo "/dev/${name##*/}"
			return
		}
	done
	echo "init: no port \`$1\`" >&2
}

# Tells the host how the run ended, waits until it has read everything that was
# sent before, and ends the machine.
finish() {
	local answer
	printf '%s\n' "$*" >&"$status"
	read -r -t 30 -u "$status" answer
	sync
	echo o >/proc/sysrq-trigger
	sleep 60
}

mount -t sysfs -o nosuid,nodev,noexec sys /sys
mkdir -p /dev/pts /dev/shm /dev/mqueue /run/lock /run/user
mount -t devpts -o nosuid,noexec,gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev shm /dev/shm
mount -t mqueue -o nosuid,nodev,noexec mqueue /dev/mqueue
mount -t tmpfs -o nosuid,nodev,mode=1777 tmp /tmp
mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate cgroup2 /sys/fs/cgroup
mount -t bpf -o nosuid,nodev,noexec,mode=700 bpf /sys/fs/bpf
mount -t securityfs -o nosuid,nodev,noexec securityfs /sys/kernel/security
mount -t tracefs -o nosuid,nodev,noexec tracefs /sys/kernel/tracing
# As systemd has it, so that what is mounted later is seen in other namespaces.
mount --make-rshared /
ln -sfn /proc/self/fd /dev/fd
ln -sfn /proc/self/fd/0 /dev/stdin
ln -sfn /proc/self/fd/1 /dev/stdout
ln -sfn /proc/self/fd/2 /dev/stderr
install -d -o dev -g dev -m 700 /run/user/1000

exec {status}<>"$(port status)"
echo sandbox-vm >/proc/sys/kernel/hostname
# What systemd sets on a Debian host and the kernel does not by itself.
for setting in kernel/pid_max=4194304 fs/protected_{fifos,hardlinks,symlinks}=1 \
	fs/protected_regular=2 'net/ipv4/ping_group_range=0 2147483647'; do
	echo "${setting#*=}" >"/proc/sys/${setting%%=*}"
done
ulimit -Hn 524288

# Who is where, as under systemd: services in one slice, people in another.
for controller in $(</sys/fs/cgroup/cgroup.controllers); do
	echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done
mkdir -p /sys/fs/cgroup/system.slice/sandboxd.service /sys/fs/cgroup/user.slice/session

# A network with somebody on it: the namespace `outside` is the gateway and
# owns the documentation addresses, so that connecting to one is answered.
modprobe veth
ip netns add outside
ip -batch - <<-END
	link set lo up
	link add eth0 type veth peer name eth0 netns outside
	addr add 192.0.2.2/24 dev eth0
	addr add 2001:db8::2/64 dev eth0 nodad
	link set eth0 up
END
ip -n outside -batch - <<-END
	link set lo up
	addr add 192.0.2.1/24 dev eth0
	addr add 2001:db8::1/64 dev eth0 nodad
	addr add 198.51.100.1/32 dev lo
	addr add 203.0.113.1/32 dev lo
	link set eth0 up
END
ip route add default via 192.0.2.1
ip -6 route add default via 2001:db8::1

# As a package has them; on the host they belong to whoever runs this.
chown -R root:root $vm/files $vm/put
chmod -R u=rwX,go=rX $vm/files
chmod 755 $vm/put
cp -a --no-preserve=timestamps $vm/files/. /
mkdir -p /mnt/put
mount --bind $vm/put /mnt/put

if [[ -e $vm/daemon ]]; then
	: >/var/log/sandboxd.log
	tail -F -n +1 /var/log/sandboxd.log >"$(port log)" 2>/dev/null &
	(
		echo $BASHPID >/sys/fs/cgroup/system.slice/sandboxd.service/cgroup.procs
		exec sandboxd --foreground </dev/null >>/var/log/sandboxd.log 2>&1
	) &
	daemon=$!
	deadline=$((SECONDS + $(<$vm/daemon)))
	until [[ -S /run/sandboxd/sandboxd.sock ]] &&
		curl -s -o /dev/null --max-time 5 --http2-prior-knowledge --unix-socket /run/sandboxd/sandboxd.sock http://localhost/; do
		kill -0 $daemon 2>/dev/null || {
			wait $daemon
			finish daemon exited $?
		}
		((SECONDS < deadline)) || finish daemon silent
		sleep 0.1
	done
fi

cd /root
echo $BASHPID >/sys/fs/cgroup/user.slice/session/cgroup.procs
if [[ -e $vm/command ]]; then
	mapfile -d '' -t command <$vm/command
	mapfile -d '' -t environment <$vm/environment
	# Through pipes, because a port can be opened only once and a command may
	# well open its own /dev/stdout.
	exec {out}> >(exec cat >"$(port stdout)") && out_relay=$!
	exec {err}> >(exec cat >"$(port stderr)") && err_relay=$!
	env "${environment[@]}" "${command[@]}" </dev/null >&"$out" 2>&"$err" {out}>&- {err}>&- {status}>&-
	code=$?
	exec {out}>&- {err}>&-
	# Bounded: what the command left running may hold the pipes for ever.
	for relay in $out_relay $err_relay; do
		for ((i = 0; i < 30; i++)); do
			kill -0 "$relay" 2>/dev/null || break
			sleep 0.1
		done
	done
	finish exited $code
else
	read -r rows columns <$vm/size
	stty -F /dev/ttyS0 rows "$rows" cols "$columns"
	TERM=$(<$vm/term) setsid --ctty --wait bash -l </dev/ttyS0 >/dev/ttyS0 2>&1 {status}>&-
	finish exited $?
fi
