#!/bin/busybox sh
# First process of a test guest: loads the modules that the disks need, mounts
# the root file system and what belongs on top of it, and hands over to the
# script of this run, which the payload disk carries.
export PATH=/bin

fail() {
	echo "initramfs: $*"
	# With `panic=-1` the end of process 1 ends the machine.
	exit 1
}

disk() { # disk DEVICE MOUNTPOINT TYPE OPTIONS
	tries=0
	until [ -b "$1" ]; do
		tries=$((tries + 1))
		[ $tries -lt 200 ] || fail "disk \`$1\` did not appear"
		usleep 50000
	done
	mount -t "$3" -o "$4" "$1" "$2" || fail "cannot mount \`$1\` at \`$2\`"
}

mount -t devtmpfs dev /dev || fail "cannot mount \`/dev\`"
mount -t proc -o nosuid,nodev,noexec proc /proc || fail "cannot mount \`/proc\`"

while read -r module; do
	insmod "/modules/$module" || fail "cannot load module \`$module\`"
done </modules/order

disk /dev/vda /root ext4 rw,relatime
modules=/root/usr/lib/modules/$(uname -r)
mkdir -p "$modules"
disk /dev/vdb "$modules" ext4 ro,relatime
mount -t tmpfs -o nosuid,nodev,mode=755 run /root/run || fail "cannot mount \`/run\`"
mkdir /root/run/vm
disk /dev/vdc /root/run/vm ext4 rw,relatime

mount --move /dev /root/dev
mount --move /proc /root/proc
exec switch_root /root /run/vm/init
