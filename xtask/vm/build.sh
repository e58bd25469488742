#!/usr/bin/env bash
# Builds a kind of the guests of `cargo xtask vm` from Debian packages: a kernel and an initial file system.
# usage: build.sh DIRECTORY user-mode|emulated
#
# ASHLAR_VM_KERNEL=FOLDER has emulated guests with the kernel whose packages are in it, in place of the newest 6.12.
#
# DIRECTORY gets: key, and vmlinuz, emulated.gz (a kernel for QEMU), or linux.uml, usermode.gz, xshim.so (user-mode Linux).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kind=$2
mkdir -p "$1"
cd "$1"
work=$PWD/work-$kind
rm -rf "$work"
mkdir "$work"

# Modules of each guest, beside what they depend on.
emulated_modules="drbd ublk_drv nbd virtio_pci virtio_net virtio_blk net_failover ext4 crc32c_generic crc32c-intel dm-mod dm-snapshot
    dm-thin-pool dm-crypt xts nvme-tcp nvme-fabrics nvme-core nvmet nvmet-tcp loop xfs"
usermode_modules="drbd hmac nbd dm-mod dm-snapshot dm-thin-pool dm-flakey dm-delay dm-dust dm-log-writes loop xfs"
# Programs of both that busybox has not, or has too little of.
programs="drbdadm drbdsetup drbdmeta fallocate blkdiscard blockdev modprobe insmod lsmod rmmod ip dropbear dropbearkey fio
    lvm cryptsetup nvme mkfs.ext4 mkfs.xfs fsck.ext4 xfs_repair blkid nbd-client"

export DEBIAN_FRONTEND=noninteractive
emulator=
[ "$kind" = user-mode ] || emulator=qemu-system-x86
# shellcheck disable=SC2086
apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends \
    $emulator busybox-static cpio gzip xz-utils kmod drbd-utils dropbear-bin openssh-client fio lvm2 \
    cryptsetup-bin nvme-cli thin-provisioning-tools xfsprogs e2fsprogs nbd-client iproute2 gcc libc6-dev >/dev/null

package=
if [ "$kind" = emulated ] && [ -n "${ASHLAR_VM_KERNEL:-}" ]; then
    cp "$ASHLAR_VM_KERNEL"/*.deb "$work"
elif [ "$kind" = emulated ]; then
    # The newest kernel of that series there is.
    package=$(apt-cache search --names-only '^linux-image-6\.12\.[0-9]+\+deb[0-9]+-amd64$' | cut -d' ' -f1 | sort -V | tail -1)
    [ -n "$package" ] || { echo "there is no package linux-image-6.12.*-amd64; add backports to apt's sources" >&2; exit 1; }
else
    package=user-mode-linux
fi
[ -z "$package" ] || (cd "$work" && apt-get download "$package" >/dev/null 2>&1) || { echo "$package could not be loaded" >&2; exit 1; }
for deb in "$work"/*.deb; do dpkg -x "$deb" "$work/kernel"; done
if [ "$kind" = emulated ]; then
    # Debian 13 has them below usr.
    if [ -d "$work/kernel/usr/lib/modules" ]; then
        mkdir -p "$work/kernel/lib"
        mv "$work/kernel/usr/lib/modules" "$work/kernel/lib/"
    fi
    version=$(ls "$work/kernel/lib/modules")
    cp "$work/kernel/boot/vmlinuz-$version" vmlinuz 2>/dev/null || cp "$work/kernel/lib/modules/$version/vmlinuz" vmlinuz
else
    cp "$work/kernel/usr/bin/linux.uml" linux.uml
    gcc -O2 -shared -fPIC -o xshim.so "$here/xshim.c" -ldl
    # depmod and modprobe look for lib/modules below their root.
    mkdir -p "$work/kernel/lib"
    mv "$work/kernel/usr/lib/uml/modules" "$work/kernel/lib/modules"
    version=$(ls "$work/kernel/lib/modules")
fi

[ -f key ] || ssh-keygen -q -t ed25519 -N '' -f key

# What both have: programs with their libraries, a shell, a key that opens the door.
root=$work/root
mkdir -p "$root"/{bin,sbin,proc,sys,dev,run,tmp,etc/dropbear,root/.ssh,var/lib/drbd,var/lock,mnt,usr/bin,usr/sbin,lib/drbd}
ln -s lib "$root/lib64"
cp /bin/busybox "$root/bin/"
for applet in $(busybox --list); do
    [ "$applet" = busybox ] || ln -sf busybox "$root/bin/$applet"
done
copy() { # PATH: to the same place, never over what is there
    mkdir -p "$root$(dirname "$1")"
    cp -Ln "$1" "$root$1" 2>/dev/null || true
}
for program in $programs; do
    path=$(PATH=$PATH:/usr/sbin:/sbin command -v "$program") || { echo "$program is not installed" >&2; exit 1; }
    # Those of busybox would be found first.
    rm -f "$root/bin/$program"
    copy "$path"
    { ldd "$path" 2>/dev/null || true; } | grep -o '/[^ )]*' | while read -r library; do copy "$library"; done
done
# The kernel loads modules by it when somebody asks for a file system.
[ -e "$root/sbin/modprobe" ] || ln -s ../usr/sbin/modprobe "$root/sbin/modprobe"
cp /lib/drbd/drbd*-84 "$root/lib/drbd/"
cp key.pub "$root/root/.ssh/authorized_keys"
chmod 700 "$root/root" "$root/root/.ssh"
dropbearkey -t ed25519 -f "$root/etc/dropbear/dropbear_ed25519_host_key" >/dev/null 2>&1
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
echo '/bin/sh' >"$root/etc/shells"
cp "$here/init" "$root/init"
chmod +x "$root/init"

modules() { # FROM VERSION TO MODULE...: modules and what they need, unpacked
    local from=$1 version=$2 to=$3
    shift 3
    depmod -b "$from" "$version" 2>/dev/null || true
    for module in "$@"; do
        modprobe --show-depends -d "$from" -S "$version" "$module" 2>/dev/null | awk '$1 == "insmod" { print $2 }' || true
    done | sort -u | while read -r path; do
        target=$to/lib/modules/$version/${path#*/lib/modules/"$version"/}
        mkdir -p "$(dirname "$target")"
        case $path in
        *.xz) xz -dc "$path" >"${target%.xz}" ;;
        *) cp "$path" "$target" ;;
        esac
    done
    cp "$from/lib/modules/$version"/modules.{builtin,order} "$to/lib/modules/$version/" 2>/dev/null || true
    depmod -b "$to" "$version" 2>/dev/null || true
}
pack() { # ROOT FILE
    (cd "$1" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$2.new"
    mv "$2.new" "$2"
}
if [ "$kind" = emulated ]; then
    modules "$work/kernel" "$version" "$root" $emulated_modules
    pack "$root" emulated.gz
else
    modules "$work/kernel" "$version" "$root" $usermode_modules
    pack "$root" usermode.gz
fi
rm -rf "$work"
