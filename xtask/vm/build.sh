#!/usr/bin/env bash
# Builds a kind of the guests of `cargo xtask vm` from Debian packages: a kernel and an initial file system.
# usage: build.sh DIRECTORY user-mode|emulated|newest
#
# DIRECTORY gets: key, and
#   user-mode  linux.uml, usermode.gz, xshim.so (user-mode Linux)
#   emulated   vmlinuz, emulated.gz (for QEMU): the newest 6.12 of the machine's own sources
#   newest     vmlinuz-newest, newest.gz (for QEMU): the newest kernel of Debian 13's backports
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kind=$2
mkdir -p "$1"
cd "$1"
work=$PWD/work-$kind
rm -rf "$work"
mkdir "$work"

# Modules of each guest, beside what they depend on. One that a kernel does not have, or has built in, is left out: newer kernels
# have virtio_pci built in, and crc32c-cryptoapi in place of the two before it.
emulated_modules="drbd ublk_drv nbd fuse virtio_pci virtio_net virtio_blk net_failover ext4 crc32c_generic crc32c-intel crc32c-cryptoapi
    dm-mod dm-snapshot dm-thin-pool dm-crypt xts nvme-tcp nvme-fabrics nvme-core nvmet nvmet-tcp loop xfs"
usermode_modules="drbd hmac nbd dm-mod dm-snapshot dm-thin-pool dm-flakey dm-delay dm-dust dm-log-writes loop xfs"
case $kind in
user-mode) kernel=linux.uml initrd=usermode.gz wanted=$usermode_modules needs= ;;
emulated) kernel=vmlinuz initrd=emulated.gz wanted=$emulated_modules needs=qemu-system-x86 ;;
newest) kernel=vmlinuz-newest initrd=newest.gz wanted=$emulated_modules needs="qemu-system-x86 debian-archive-keyring" ;;
*) echo "there is no kind $kind of guests" >&2; exit 1 ;;
esac
# Programs of both that busybox has not, or has too little of.
programs="drbdadm drbdsetup drbdmeta fallocate blkdiscard blockdev modprobe insmod lsmod rmmod ip dropbear dropbearkey fio
    setpriv lvm cryptsetup nvme mkfs.ext4 mkfs.xfs fsck.ext4 xfs_repair blkid nbd-client"

export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends \
    $needs busybox-static cpio gzip xz-utils kmod drbd-utils dropbear-bin openssh-client fio lvm2 \
    cryptsetup-bin nvme-cli thin-provisioning-tools xfsprogs e2fsprogs nbd-client iproute2 gcc libc6-dev >/dev/null

load() { # PACKAGE
    (cd "$work" && apt-get download "$1" >/dev/null 2>&1) || { echo "$1 could not be loaded" >&2; exit 1; }
}
load_newest() { # The machine's sources need not have Debian 13's backports, and stay as they are: apt gets sources and lists of its own.
    local mirror names version binary
    # The machine may have a mirror of its own.
    mirror=$(apt-get indextargets --format '$(SITE) $(ORIGIN) $(LABEL)' 'Created-By: Packages' |
        awk '$2 == "Debian" && $3 == "Debian" && !seen++ { print $1 }')
    mkdir -p "$work"/apt/{lists/partial,archives/partial}
    # Debian 12 has Debian 13's keys in its point releases.
    echo "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
        "${mirror:-http://deb.debian.org/debian} trixie-backports main" >"$work/apt/sources.list"
    local own=(-o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::Preferences=/dev/null
        -o Dir::Etc::PreferencesParts=/dev/null -o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt"
        -o APT::Architecture=amd64 -o APT::Sandbox::User=root)
    # Otherwise it takes a mirror that is not reached for a warning.
    apt-get "${own[@]}" -qq -o APT::Update::Error-Mode=any update
    names=$(apt-cache "${own[@]}" search --names-only '^linux-(binary|binary-unsigned|modules)-[0-9.]+\+deb13-amd64$' | cut -d' ' -f1)
    for version in $(sed -n 's/^linux-modules-//p' <<<"$names" | sort -rV); do
        # The unsigned one is built with the modules, the other one comes later.
        for binary in linux-binary-unsigned linux-binary; do
            if grep -qxF -e "$binary-$version" <<<"$names"; then
                # linux-base says which modules are built in.
                (cd "$work" && apt-get "${own[@]}" -qq download "$binary-$version" "linux-modules-$version" "linux-base-$version")
                return
            fi
        done
    done
    echo "Debian 13's backports have no kernel with its modules" >&2
    exit 1
}
first() { # PATH...: the first of them that there is
    local path
    for path in "$@"; do
        [ -e "$path" ] && echo "$path" && return
    done
    echo "there is none of $*" >&2
    return 1
}
case $kind in
user-mode) load user-mode-linux ;;
emulated)
    # The newest kernel of that series there is.
    package=$(apt-cache search --names-only '^linux-image-6\.12\.[0-9]+\+deb[0-9]+-amd64$' | cut -d' ' -f1 | sort -V | tail -1)
    [ -n "$package" ] || { echo "there is no package linux-image-6.12.*-amd64; add backports to apt's sources" >&2; exit 1; }
    load "$package"
    ;;
newest) load_newest ;;
esac
for deb in "$work"/*.deb; do dpkg -x "$deb" "$work/kernel"; done
# depmod and modprobe look for lib/modules below their root.
mkdir -p "$work/kernel/lib"
if [ "$kind" = user-mode ]; then
    cp "$work/kernel/usr/bin/linux.uml" "$kernel"
    gcc -O2 -shared -fPIC -o xshim.so "$here/xshim.c" -ldl
    mv "$work/kernel/usr/lib/uml/modules" "$work/kernel/lib/modules"
    version=$(ls "$work/kernel/lib/modules")
else
    # Debian 13 has them below usr.
    [ ! -d "$work/kernel/usr/lib/modules" ] || mv "$work/kernel/usr/lib/modules" "$work/kernel/lib/"
    version=$(ls "$work/kernel/lib/modules")
    cp "$(first "$work/kernel/boot/vmlinuz-$version" "$work/kernel/lib/modules/$version"/vmlinuz{,.unsigned})" "$kernel"
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
# shellcheck disable=SC2086
modules "$work/kernel" "$version" "$root" $wanted
pack "$root" "$initrd"
rm -rf "$work"
