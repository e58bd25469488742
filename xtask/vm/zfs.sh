#!/usr/bin/env bash
# Builds ZFS for a kernel of the guests of `cargo xtask vm`, from Debian's packages: its modules, and its programs with their libraries.
# usage: zfs.sh DIRECTORY KERNEL
#
# DIRECTORY gets zfs-KERNEL.tar, to be unpacked at the root of a guest: modules/{spl,zfs}.ko, bin/{zpool,zfs,zvol_id}, libraries.
set -euo pipefail

kernel=$2
mkdir -p "$1"
cd "$1"
work=$PWD/work-zfs
rm -rf "$work"
mkdir -p "$work"/{lists/partial,packages,root/bin,root/modules}

export DEBIAN_FRONTEND=noninteractive
apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "linux-headers-$kernel" gcc make libc6-dev tar >/dev/null

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
for program in sbin/zpool sbin/zfs lib/udev/zvol_id; do
    path=$work/unpacked/$program
    [ -e "$path" ] || path=$work/unpacked/usr/$program
    cp "$path" "$work/root/bin/"
    LD_LIBRARY_PATH=$libraries ldd "$path" | awk '$3 ~ /^\// { print $3 }' | while read -r library; do
        case $library in
        "$work"/*) mkdir -p "$work/root/lib/x86_64-linux-gnu" && cp -Ln "$library" "$work/root/lib/x86_64-linux-gnu/" ;;
        *) copy "$library" ;;
        esac
    done
done
tar -C "$work/root" -cf "zfs-$kernel.tar.new" .
mv "zfs-$kernel.tar.new" "zfs-$kernel.tar"
rm -rf "$work"
