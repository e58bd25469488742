#!/usr/bin/env bash
# Builds ZFS for a kernel of the guests of `cargo xtask vm`, from Debian's packages: its modules, and its programs with their libraries.
# usage: zfs.sh DIRECTORY KERNEL
#
# DIRECTORY gets zfs-KERNEL.tar, to be unpacked at the root of a guest: modules/{spl,zfs}.ko, bin/{zpool,zfs}, udev with the rules
# for disks and for volumes of ZFS, libraries.
set -euo pipefail

kernel=$2
mkdir -p "$1"
cd "$1"
work=$PWD/work-zfs
rm -rf "$work"
mkdir -p "$work"/{lists/partial,packages,root/bin,root/modules}

export DEBIAN_FRONTEND=noninteractive
apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "linux-headers-$kernel" gcc make libc6-dev tar udev >/dev/null

# ZFS is in contrib, which the machine's sources need not have. Backports have what newer kernels need.
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
printf 'deb http://deb.debian.org/debian %s main contrib\n' "$release" "$release-backports" >"$work/sources.list"
apt=(apt-get -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
    -o APT::Sandbox::User=root)
"${apt[@]}" -q update >/dev/null
(cd "$work/packages" && "${apt[@]}" -q download -t "$release-backports" zfs-dkms zfsutils-linux libzfs6linux libzpool6linux \
    libnvpair3linux libuutil3linux >/dev/null)
for package in "$work"/packages/*.deb; do dpkg -x "$package" "$work/unpacked"; done

source=$(echo "$work"/unpacked/usr/src/zfs-*)
headers=/usr/src/linux-headers-$kernel
(cd "$source" && ./configure --with-config=kernel --with-linux="$headers" --with-linux-obj="$headers" && make -s -j"$(nproc)") \
    >"$work/log" 2>&1 || { tail -30 "$work/log" >&2; exit 1; }
for module in spl zfs; do
    strip --strip-debug "$source/module/$module.ko" -o "$work/root/modules/$module.ko"
done

copy() { # FILE: a library, to where the guest's loader finds it
    mkdir -p "$work/root$(dirname "$1")"
    cp -Ln "$1" "$work/root$1"
}
libraries=$work/unpacked/lib/x86_64-linux-gnu:$work/unpacked/usr/lib/x86_64-linux-gnu
find_in_packages() { # PATH: where that of a package is, or else that of this machine
    local root
    for root in "$work/unpacked" "$work/unpacked/usr" '' /usr; do
        [ -e "$root/$1" ] && echo "$root/$1" && return
    done
    echo "there is no $1" >&2
    return 1
}
program() { # PATH TO: with its libraries
    local path
    path=$(find_in_packages "$1")
    mkdir -p "$(dirname "$work/root/$2")"
    cp "$path" "$work/root/$2"
    LD_LIBRARY_PATH=$libraries ldd "$path" | awk '$3 ~ /^\// { print $3 }' | while read -r library; do
        case $library in
        "$work"/*) mkdir -p "$work/root/lib/x86_64-linux-gnu" && cp -Ln "$library" "$work/root/lib/x86_64-linux-gnu/" ;;
        *) copy "$library" ;;
        esac
    done
}
program sbin/zpool bin/zpool
program sbin/zfs bin/zfs
# Where udev looks for what its rules name.
program lib/udev/zvol_id lib/udev/zvol_id
program bin/udevadm bin/udevadm
ln -s udevadm "$work/root/bin/systemd-udevd"
mkdir "$work/root/lib/udev/rules.d"
for rules in 50-udev-default 60-block 60-persistent-storage 60-zvol; do
    cp "$(find_in_packages "lib/udev/rules.d/$rules.rules")" "$work/root/lib/udev/rules.d/"
done
tar -C "$work/root" -cf "zfs-$kernel.tar.new" .
mv "zfs-$kernel.tar.new" "zfs-$kernel.tar"
rm -rf "$work"
