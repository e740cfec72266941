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
mount -t overlay -o lowerdir=/host,upperdir=/layer/changed,workdir=/layer/work root /newroot
for each in proc sys dev; do mount --move "/$each" "/newroot/$each"; done
mkdir -p /newroot/dev/pts /newroot/dev/shm
mount -t devpts devpts /newroot/dev/pts
mount -t tmpfs shm /newroot/dev/shm
mount -t tmpfs -o size=75%,mode=755 run /newroot/run
mkdir -p "/newroot/lib/modules/$RELEASE" /newroot/run/sos-kernel
mount --bind "/host$MODULES" "/newroot/lib/modules/$RELEASE"
mount -t 9p -o "$nine" results /newroot/run/sos-kernel
exec switch_root /newroot /bin/bash "$GUEST"
