#!/bin/busybox sh
# First program of the virtual machine, in its initial file system: mounts the host's file system, read-only below a layer in memory, and
# continues with guest.sh there. `settings` is written by sos_kernel/initramfs.py.
set -eu
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devices /dev
# shellcheck disable=SC1091 # written with the image
. /settings # RELEASE, MODULES, GUEST
while read -r module; do insmod "/modules/$module"; done </order
nine=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "$nine,ro,cache=loose" host /host
mount -t tmpfs -o size=75% layer /layer
mkdir -p /layer/changed /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/changed,workdir=/layer/work root /root
for each in proc sys dev; do mount --move "/$each" "/root/$each"; done
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts devpts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs -o size=75%,mode=755 run /root/run
mkdir -p "/root/lib/modules/$RELEASE" /root/run/sos-kernel
mount --bind "/host$MODULES" "/root/lib/modules/$RELEASE"
mount -t 9p -o "$nine" results /root/run/sos-kernel
exec switch_root /root /bin/bash "$GUEST"
