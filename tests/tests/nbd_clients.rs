//! Real NBD clients against the server: libnbd's tools, QEMU's tools and fio.
//!
//! Each test names the tools it needs and is skipped, saying so, where they are not installed
//! (Debian: libnbd-bin python3-libnbd qemu-utils fio).
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::nbd_support::*;
use frontend::nbd::server::{CloseReason, Config, Event, Export, Parting, Place, TargetKey};
use runtime::{Errno, FaultPlan, Op, TargetInfo};
use vocab::Bytes;

const MIB: usize = 1 << 20;

#[test]
fn nbdinfo_shows_what_the_target_can_do() {
    if !have(&["nbdinfo"]) {
        return;
    }
    let server = TestServer::start(&[export("r0/0", 64 << 20)]);
    for uri in [server.unix_uri("r0/0"), server.tcp_uri("r0/0"), server.unix_uri("")] {
        let info = ok("nbdinfo", &["--json", &uri]);
        for fact in [
            "\"protocol\": \"newstyle-fixed\"",
            "\"structured\": true",
            "\"export-size\": 67108864",
            "\"description\": \"test export r0/0\"",
            "\"is_read_only\": false",
            "\"is_rotational\": false",
            "\"can_cache\": false",
            "\"can_df\": true",
            "\"can_fast_zero\": false",
            "\"can_flush\": true",
            "\"can_fua\": true",
            "\"can_multi_conn\": true",
            "\"can_trim\": true",
            "\"can_zero\": true",
            "\"block_size_minimum\": 512",
            "\"block_size_preferred\": 4096",
            "\"block_size_maximum\": 33554432",
            "base:allocation",
        ] {
            assert!(info.contains(fact), "{fact} in {info}");
        }
    }
    assert_eq!(ok("nbdinfo", &["--size", &server.tcp_uri("r0/0")]).trim(), "67108864");
}

#[test]
fn several_exports_are_listed_and_kept_apart() {
    if !have(&["nbdinfo", "nbdsh", "qemu-img"]) {
        return;
    }
    let exports = [export("r0/0", 1 << 20), export("r0/1", 2 << 20), export("db", 3 << 20)];
    let server = TestServer::start(&exports);
    let list = ok("nbdinfo", &["--list", "--json", &server.unix_uri("")]);
    for (name, size) in [("r0/0", 1 << 20), ("r0/1", 2 << 20), ("db", 3 << 20)] {
        let name = format!("\"export-name\": \"{name}\"");
        assert!(list.contains(&name), "{list}");
        assert!(list.contains(&format!("\"export-size\": {size}")), "{list}");
    }
    nbdsh(&server.unix_uri("r0/1"), "h.pwrite(b'b' * 512, 0)");
    nbdsh(&server.unix_uri("db"), "h.pwrite(b'c' * 512, 0)");
    let first: Vec<u8> = (0..3).map(|key| server.content(key, 0, 1)[0]).collect();
    assert_eq!(first, [0, b'b', b'c']);
    // With more than one export there is no default, and the error says what to do.
    let error = fails("qemu-img", &["info", &server.unix_uri("")]);
    assert!(error.contains("there is no default export here"), "{error}");
    let error = fails("qemu-img", &["info", &server.unix_uri("nope")]);
    assert!(error.contains("there is no export \"nope\" here"), "{error}");
}

#[test]
fn nbdcopy_copies_in_and_out_over_four_connections() {
    if !have(&["nbdcopy"]) {
        return;
    }
    let size = 48 * MIB;
    let server = TestServer::start(&[export("r0/0", size as u64)]);
    let (input, output) = (server.file("in"), server.file("out"));
    let mut data = pattern(7, size);
    // Holes on the way: nbdcopy trims or zeroes them.
    data[8 * MIB..20 * MIB].fill(0);
    fs::write(&input, &data).unwrap();
    let path = |p: &std::path::Path| p.to_str().unwrap().to_owned();
    for uri in [server.unix_uri("r0/0"), server.tcp_uri("r0/0")] {
        ok(
            "nbdcopy",
            &["--connections=4", "--threads=4", "--requests=64", "--flush", &path(&input), &uri],
        );
        assert!(server.content(0, 0, size) == data, "copied in over {uri}");
        ok(
            "nbdcopy",
            &["--connections=4", "--threads=4", "--request-size=4194304", &uri, &path(&output)],
        );
        assert!(fs::read(&output).unwrap() == data, "copied out over {uri}");
    }
    let opened = server.events().iter().filter(|e| matches!(e, Event::Opened { .. })).count();
    assert!(opened >= 16, "{opened} connections of four copies with four each");
    assert!(server.target(0, |t| t.inner().flushes()) > 0);
    server.wait_for("all clients to have left", |s| {
        s.on(0, |host, _| host.server.clients().count()) == 0
    });
    let events = server.events();
    let left = |e: &&Event| matches!(e, Event::Closed { reason: CloseReason::Left, .. });
    assert_eq!(events.iter().filter(left).count(), opened);
    assert_eq!(server.target(0, |t| t.inner().openers()), 0);
}

#[test]
fn every_command_works_from_libnbd() {
    if !have(&["nbdsh"]) {
        return;
    }
    let script = r#"
data = bytes(range(256)) * 64
for structured in [True, False]:
    h = nbd.NBD()
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.set_request_structured_replies(structured)
    h.connect_uri(uri)
    assert h.get_structured_replies_negotiated() == structured
    h.zero(1 << 20, 0)
    h.pwrite(data, 8192)
    assert h.pread(len(data), 8192) == data
    assert h.pread(512, 0) == bytes(512)
    h.pwrite(b"x" * 512, 512, nbd.CMD_FLAG_FUA)
    h.flush()
    h.trim(4096, 8192, nbd.CMD_FLAG_FUA)
    assert h.pread(4096, 8192) == bytes(4096)
    h.zero(4096, 12288, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
    assert h.pread(8192, 12288) == bytes(4096) + data[:4096]
    big = bytes([7, 3, 9, 1]) * (8 << 20)
    h.pwrite(big, 1 << 20)
    assert h.pread(len(big), 1 << 20) == big
    if structured:
        chunks = []
        h.pread_structured(16 << 20, 1 << 20, lambda d, o, s, e: chunks.append((o, len(d))),
                           nbd.CMD_FLAG_DF)
        assert chunks == [(1 << 20, 16 << 20)], chunks
        chunks = []
        buf = h.pread_structured(3 << 20, 1 << 20, lambda d, o, s, e: chunks.append((o, len(d))))
        assert buf == big[:3 << 20]
        assert sorted(chunks) == [(i << 20, 1 << 20) for i in (1, 2, 3)], chunks
        seen = []
        def status(context, offset, entries, error):
            assert context == "base:allocation"
            seen.extend(entries)
        h.block_status(20480, 4096, status)
        assert seen == [8192, 3, 12288, 0], seen
        seen.clear()
        h.block_status(20480, 0, status, nbd.CMD_FLAG_REQ_ONE)
        assert seen == [4096, 0], seen
    h.zero(h.get_size(), 0)
    h.shutdown()
"#;
    let server = TestServer::start(&[export("r0/0", 64 << 20)]);
    for uri in [server.unix_uri("r0/0"), server.tcp_uri("r0/0")] {
        ok("nbdsh", &["-c", &format!("uri = '{uri}'"), "-c", script]);
    }
}

/// libnbd since 1.18 asks for them by itself, QEMU since 8.2: with those, the other tests use them, too.
#[test]
fn one_extended_request_covers_more_than_four_gib() {
    if !have(&["nbdsh"]) {
        return;
    }
    let old = "assert hasattr(h, 'get_extended_headers_negotiated'), 'too old'";
    if !client("nbdsh", &["-c", old]).status.success() {
        println!("SKIPPED: this libnbd has no extended headers");
        return;
    }
    let server = TestServer::start(&[export("r0/0", 12 << 30)]);
    let script = r#"
import errno
G = 1 << 30
assert h.get_extended_headers_negotiated()
end = h.get_size()
written = (3584, 5 * G, 6 * G - 512, 10 * G, end - 4096)
for at in written: h.pwrite(b"a" * 4096, at)
h.zero(9 * G + 4096, 0, nbd.CMD_FLAG_FUA)
for at in written: assert h.pread(4096, at) == (bytes(4096) if at < 9 * G else b"a" * 4096), at
h.trim(end - 4096, 0)
assert h.pread(4096, 10 * G) == bytes(4096) and h.pread(4096, end - 4096) == b"a" * 4096
seen, at = [], 0
def status(context, offset, entries, error):
    assert (context, offset) == ("base:allocation", at)
    seen.extend(entries)
while at < end:
    h.block_status_64(end - at, at, status)
    at = sum(length for length, flags in seen)
assert at == end and [entry for entry in seen if entry[1] == 0] == [(4096, 0)], seen
h.set_strict_mode(0)
def fails(number, f, *args):
    try: f(*args)
    except nbd.Error as e: assert e.errnum == number, (f, args, e)
    else: assert False, (f, args)
fails(errno.ENOSPC, h.zero, 1 << 40, 0)
fails(errno.ENOSPC, h.zero, (1 << 63) - 512, 512)
fails(errno.EINVAL, h.trim, end, 512)
fails(errno.EOVERFLOW, h.pread, 33 << 20, 0)
fails(errno.EINVAL, h.cache, 5 * G, 0)
# The connection is none the worse for it, and others are not in the way of a long request.
h.pwrite(b"b" * 4096, 0)
done = []
for i in range(300):
    h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([i % 251]) * 4096), 6 * G + i * 4096,
                 completion=lambda e: done.append(e) or 1)
    if i % 100 == 0: h.aio_zero(5 * G, 7 * G, completion=lambda e: done.append(e) or 1)
while len(done) < 303: h.poll(-1)
assert not any(done)
for i in range(300): assert h.pread(4096, 6 * G + i * 4096) == bytes([i % 251]) * 4096
assert h.pread(4096, 0) == b"b" * 4096
"#;
    for uri in [server.unix_uri("r0/0"), server.tcp_uri("r0/0")] {
        nbdsh(&uri, script);
    }
    server.target(0, |t| t.fail_next(Op::Trim, Errno::EIO));
    let script = r#"
import errno
try: h.trim(11 << 30, 0); assert False
except nbd.Error as e: assert e.errnum == errno.EIO, e
h.trim(11 << 30, 0)
"#;
    nbdsh(&server.unix_uri("r0/0"), script);
}

#[test]
fn many_requests_in_flight_are_answered_in_any_order() {
    if !have(&["nbdsh"]) {
        return;
    }
    let plan = FaultPlan { delay_polls_max: 5, reorder: true, ..FaultPlan::none(11) };
    let server = TestServer::start(&[Serve { plan, ..export("r0/0", 16 << 20) }]);
    let script = r#"
import errno
done = []
for i in range(600):
    buf = nbd.Buffer.from_bytearray(bytearray([i % 251]) * 4096)
    h.aio_pwrite(buf, i * 4096, completion=lambda e, i=i: done.append(i) or 1)
while len(done) < 600: h.poll(-1)
assert done != sorted(done)
bufs = {}
for i in range(600):
    bufs[i] = nbd.Buffer(4096)
    h.aio_pread(bufs[i], i * 4096, completion=lambda e, i=i: done.append(i) or 1)
while len(done) < 1200: h.poll(-1)
for i in range(600): assert bufs[i].to_bytearray() == bytes([i % 251]) * 4096
"#;
    nbdsh(&server.unix_uri("r0/0"), script);
}

#[test]
fn invalid_requests_get_the_protocols_errors() {
    if !have(&["nbdsh"]) {
        return;
    }
    let server = TestServer::start(&[export("r0/0", 1 << 20)]);
    let script = r#"
import errno
h.set_strict_mode(0)
def fails(number, f, *args):
    try: f(*args)
    except nbd.Error as e:
        assert e.errnum == number, (f, args, e)
        return e.string
    assert False, (f, args)
end = h.get_size()
fails(errno.EINVAL, h.pread, 512, end)
fails(errno.ENOSPC, h.pwrite, b"x" * 1024, end - 512)
fails(errno.ENOSPC, h.zero, 512, end)
fails(errno.EINVAL, h.trim, 512, end)
fails(errno.EINVAL, h.pread, 100, 0)
fails(errno.EINVAL, h.pwrite, b"x" * 512, 100)
fails(errno.EINVAL, h.cache, 512, 0)
fails(errno.EINVAL, h.zero, 512, 0, nbd.CMD_FLAG_FAST_ZERO)
fails(errno.EINVAL, h.pread, 512, 0, nbd.CMD_FLAG_REQ_ONE)
# The connection is none the worse for it.
h.pwrite(b"y" * 512, 0)
assert h.pread(512, 0) == b"y" * 512
"#;
    for uri in [server.unix_uri("r0/0"), server.tcp_uri("r0/0")] {
        nbdsh(&uri, script);
    }
}

#[test]
fn read_only_exports_and_the_suffix_refuse_writes() {
    if !have(&["nbdsh", "nbdinfo", "qemu-io"]) {
        return;
    }
    let device = TargetInfo { read_only: true, ..export("", 1 << 20).info };
    let server = TestServer::start(&[
        export("rw", 1 << 20),
        Serve { read_only: true, ..export("ro", 1 << 20) },
        Serve { info: device, ..export("rom", 1 << 20) },
    ]);
    let script = r#"
import errno
assert h.is_read_only()
h.set_strict_mode(0)
for f, args in [(h.pwrite, (b"x" * 512, 0)), (h.trim, (512, 0)), (h.zero, (512, 0))]:
    try: f(*args); assert False
    except nbd.Error as e: assert e.errnum in (errno.EPERM, errno.EINVAL), e
assert h.pread(512, 0) == bytes(512)
"#;
    for name in ["rw:ro", "ro", "rom"] {
        nbdsh(&server.unix_uri(name), script);
        let info = ok("nbdinfo", &["--json", &server.unix_uri(name)]);
        assert!(info.contains("\"is_read_only\": true"), "{info}");
        ok("qemu-io", &["-r", "-f", "raw", "-c", "read 0 4k", &server.unix_uri(name)]);
    }
    nbdsh(&server.unix_uri("rw"), "assert not h.is_read_only(); h.pwrite(b'x' * 512, 0)");
}

#[test]
fn a_target_that_refuses_to_open_tells_the_client_why() {
    if !have(&["nbdinfo", "nbdsh", "qemu-img"]) {
        return;
    }
    let server = TestServer::start(&[export("r0/0", 1 << 20)]);
    server.target(0, |t| t.inner().refuse_open(Some(Errno::EMEDIUMTYPE)));
    let error = fails("qemu-img", &["info", &server.unix_uri("r0/0")]);
    assert!(error.contains("can not be opened") && error.contains(":ro"), "{error}");
    let refused = |e: &Event| matches!(e, Event::Refused { errno: Errno::EMEDIUMTYPE, .. });
    assert!(server.events().iter().any(refused));
    // NBD_OPT_EXPORT_NAME can not carry an error: the connection ends.
    let old = "h = nbd.NBD(); h.set_handshake_flags(0)";
    let connect = format!("h.connect_uri('{}')", server.unix_uri("r0/0"));
    fails("nbdsh", &["-c", old, "-c", &connect]);
    server.target(0, |t| t.inner().refuse_open(None));
    ok("nbdinfo", &[&server.unix_uri("r0/0")]);
    ok("nbdsh", &["-c", old, "-c", &connect, "-c", "assert h.get_protocol() == 'newstyle'"]);
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    if !have(&["qemu-img"]) {
        return;
    }
    let size = 32 * MIB;
    let server = TestServer::start(&[export("r0/0", size as u64)]);
    let image = server.file("image");
    let mut data = pattern(3, size);
    data[4 * MIB..12 * MIB].fill(0);
    fs::write(&image, &data).unwrap();
    let image = image.to_str().unwrap();
    for uri in [server.unix_uri("r0/0"), server.tcp_uri("r0/0")] {
        let info = ok("qemu-img", &["info", "-f", "raw", "--output=json", &uri]);
        assert!(info.contains("\"virtual-size\": 33554432"), "{info}");
        ok("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "8", image, &uri]);
        assert!(server.content(0, 0, size) == data);
        ok("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &uri]);
        let map = ok("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
        let hole = map.lines().find(|l| l.contains("\"start\": 4194304, \"length\": 8388608"));
        assert!(hole.is_some_and(|l| l.contains("\"zero\": true, \"data\": false")), "{map}");
    }
    server.target(0, |t| t.inner().poke(20 << 20, b"other"));
    let answer = fails("qemu-img", &["compare", "-f", "raw", image, &server.unix_uri("r0/0")]);
    assert!(answer.contains("Content mismatch at offset 20971520"), "{answer}");
}

#[test]
fn qemu_io_writes_with_fua_discards_zeroes_and_flushes() {
    if !have(&["qemu-io"]) {
        return;
    }
    let server = TestServer::start(&[export("r0/0", 16 << 20)]);
    let commands = [
        "write -P 0x5a 0 1M",
        "write -f -P 0xa5 64k 4k",
        "read -P 0x5a 0 64k",
        "read -P 0xa5 64k 4k",
        "discard 0 32k",
        "write -z -u 128k 64k",
        "write -z 192k 64k",
        "read -P 0 0 32k",
        "read -P 0 128k 128k",
        "read -P 0x5a 256k 64k",
        "aio_write -P 1 1M 64k",
        "aio_write -P 2 2M 512",
        "aio_read -P 0 3M 64k",
        "aio_flush",
        "flush",
        "read -P 1 1M 64k",
    ];
    let uri = server.tcp_uri("r0/0");
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&uri);
    let out = ok("qemu-io", &arguments);
    assert!(!out.contains("verification failed") && !out.contains("failed"), "{out}");
    assert_eq!(server.content(0, 65536, 4096), [0xa5; 4096]);
}

#[test]
fn device_errors_reach_the_client_and_pass() {
    if !have(&["qemu-io", "nbdsh"]) {
        return;
    }
    let server = TestServer::start(&[export("r0/0", 16 << 20)]);
    let uri = server.unix_uri("r0/0");
    server.target(0, |t| t.fail_next(Op::Read, Errno::EIO));
    server.target(0, |t| t.fail_next(Op::Write, Errno::ENOSPC));
    server.target(0, |t| t.fail_next(Op::Flush, Errno::EIO));
    let script = r#"
import errno
def fails(number, f, *args):
    try: f(*args); assert False
    except nbd.Error as e: assert e.errnum == number, e
fails(errno.EIO, h.pread, 4096, 0)
assert h.pread(4096, 0) == bytes(4096)
fails(errno.ENOSPC, h.pwrite, b"x" * 4096, 0)
h.pwrite(b"x" * 4096, 0)
fails(errno.EIO, h.flush)
h.flush()
"#;
    nbdsh(&uri, script);
    server.target(0, |t| t.fail_next(Op::Read, Errno::EIO));
    let out = client("qemu-io", &["-f", "raw", "-c", "read 8M 4k", "-c", "read 8M 4k", &uri]);
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.contains("read failed: Input/output error"), "{out}");
    assert!(out.contains("read 4096/4096 bytes"), "{out}");
}

#[test]
fn a_randomly_failing_target_never_confuses_the_client() {
    if !have(&["nbdsh"]) {
        return;
    }
    let plan =
        FaultPlan { delay_polls_max: 3, reorder: true, fail_per_mille: 100, ..FaultPlan::none(5) };
    let server = TestServer::start(&[Serve { plan, ..export("r0/0", 16 << 20) }]);
    let script = r#"
import random
random.seed(1)
good = failed = 0
shadow = {}
for i in range(1500):
    at, n = random.randrange(0, 900) * 4096, random.choice([512, 4096, 65536, 3 << 20])
    try:
        if random.random() < 0.5:
            h.pwrite(bytes([i % 256]) * n, at)
        else:
            assert len(h.pread(n, at)) == n
        good += 1
    except nbd.Error as e:
        assert e.errnum == 5, e
        failed += 1
assert good > 1000 and failed > 100, (good, failed)
"#;
    nbdsh(&server.unix_uri("r0/0"), script);
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !have(&["fio"]) {
        return;
    }
    let server = TestServer::start(&[export("r0/0", 32 << 20)]);
    let uri = format!("--uri={}", server.unix_uri("r0/0"));
    let help = client("fio", &["--enghelp=nbd"]);
    if !help.status.success() || !String::from_utf8_lossy(&help.stdout).contains("uri") {
        println!("SKIPPED: this fio has no nbd engine");
        return;
    }
    let common = ["--name=v", "--ioengine=nbd", &uri, "--iodepth=32", "--size=32M", "--bs=4k"];
    let common = [&common[..], &["--verify_state_save=0"]].concat();
    let verify = ["--rw=randwrite", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"];
    let out = ok("fio", &[&common[..], &verify].concat());
    assert!(out.contains("err= 0"), "{out}");
    let mixed = ["--rw=randrw", "--bsrange=512-256k", "--fsync=32", "--verify=md5"];
    let out = ok("fio", &[&common[..], &mixed].concat());
    assert!(out.contains("err= 0"), "{out}");
}

#[test]
fn a_client_killed_in_the_middle_of_writing_leaves_nothing_behind() {
    if !have(&["nbdsh"]) {
        return;
    }
    let plan = FaultPlan { delay_polls_max: 3, ..FaultPlan::none(2) };
    let server = TestServer::start(&[Serve { plan, ..export("r0/0", 64 << 20) }]);
    for uri in [server.unix_uri("r0/0"), server.tcp_uri("r0/0")] {
        let script = "while True: h.pwrite(b'w' * (8 << 20), 0); print('.', flush=True)";
        let mut child = nbdsh_process()
            .args(["-u", &uri, "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        server.wait_for("the dead client to be noticed", |s| {
            s.on(0, |host, _| host.server.clients().count()) == 0
        });
        assert_eq!(server.target(0, |t| t.inner().openers()), 0);
        nbdsh(&uri, "h.pwrite(b'a' * 512, 0); assert h.pread(512, 0) == b'a' * 512; h.shutdown()");
    }
    let lost = |e: &Event| matches!(e, Event::Closed { reason: CloseReason::Lost(_), .. });
    assert_eq!(server.events().iter().filter(|e| lost(e)).count(), 2);
}

/// The bytes of a negotiation up to transmission, as an impatient client sends them.
fn raw_client(server: &TestServer, name: &str) -> UnixStream {
    let mut socket = UnixStream::connect(&server.socket).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.read_exact(&mut [0; 18]).unwrap();
    socket.write_all(&3u32.to_be_bytes()).unwrap();
    socket.write_all(b"IHAVEOPT").unwrap();
    socket.write_all(&1u32.to_be_bytes()).unwrap();
    socket.write_all(&(name.len() as u32).to_be_bytes()).unwrap();
    socket.write_all(name.as_bytes()).unwrap();
    socket.read_exact(&mut [0; 10]).unwrap();
    socket
}

fn raw_request(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

#[test]
fn a_disconnect_is_answered_by_finishing_what_is_in_flight() {
    let server = TestServer::start(&[export("r0/0", 1 << 20)]);
    let mut socket = raw_client(&server, "r0/0");
    server.target(0, |t| t.freeze(true));
    let write = [raw_request(1, 77, 0, 512), vec![5; 512], raw_request(2, 0, 0, 0)].concat();
    socket.write_all(&write).unwrap();
    server.wait_for("the write to be in flight", |s| {
        s.on(0, |host, _| host.server.clients().next().map(|c| c.in_flight)) == Some(1)
    });
    server.target(0, |t| t.freeze(false));
    let mut reply = Vec::new();
    socket.read_to_end(&mut reply).unwrap();
    assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
    assert_eq!(reply.len(), 16);
    assert_eq!(server.content(0, 0, 512), [5; 512]);
}

#[test]
fn a_client_that_does_not_read_is_throttled_and_loses_nothing() {
    let server = TestServer::start(&[export("r0/0", 8 << 20)]);
    let data = pattern(4, 8 * MIB);
    server.target(0, {
        let data = data.clone();
        move |t| t.inner().poke(0, &data)
    });
    let mut socket = raw_client(&server, "r0/0");
    // 100 MiB of reads asked for before the first byte is taken.
    for cookie in 0..100u64 {
        socket.write_all(&raw_request(0, cookie, (cookie % 8) << 20, 1 << 20)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    let mut other = raw_client(&server, "r0/0");
    other.write_all(&raw_request(0, 1, 0, 512)).unwrap();
    other.read_exact(&mut [0; 16 + 512]).unwrap();
    for _ in 0..100 {
        let mut head = [0; 16];
        socket.read_exact(&mut head).unwrap();
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        let mut body = vec![0; MIB];
        socket.read_exact(&mut body).unwrap();
        let at = (cookie % 8) as usize * MIB;
        assert!(body == data[at..at + MIB], "reply {cookie}");
    }
}

#[test]
fn long_reads_share_a_small_pool_without_locking_up() {
    let server = TestServer::start(&[export("r0/0", 64 << 20)]);
    let mut sockets: Vec<UnixStream> = (0..8).map(|_| raw_client(&server, "r0/0")).collect();
    // Eight times 3 x 32 MiB with a pool of 128 MiB.
    for socket in &mut sockets {
        for cookie in 0..3 {
            socket.write_all(&raw_request(0, cookie, 0, 32 << 20)).unwrap();
        }
    }
    let threads: Vec<_> = sockets
        .into_iter()
        .map(|mut socket| {
            std::thread::spawn(move || {
                let mut body = vec![0; 16 + (32 << 20)];
                for _ in 0..3 {
                    socket.read_exact(&mut body).unwrap();
                    assert_eq!(body[4..8], [0; 4], "no error");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn silent_negotiations_time_out_and_clients_have_a_limit() {
    let config = Config {
        clients_max: 2,
        negotiation_idle: Duration::from_millis(300),
        ..Config::default()
    };
    let server = TestServer::with_config(&[export("r0/0", 1 << 20)], config);
    let mut served = raw_client(&server, "r0/0");
    let start = Instant::now();
    let mut silent = UnixStream::connect(&server.socket).unwrap();
    let mut third = UnixStream::connect(&server.socket).unwrap();
    let mut nothing = Vec::new();
    third.read_to_end(&mut nothing).unwrap();
    assert!(nothing.is_empty(), "the third client is turned away");
    let mut greeting = Vec::new();
    silent.read_to_end(&mut greeting).unwrap();
    assert_eq!(greeting.len(), 18);
    assert!(start.elapsed() >= Duration::from_millis(300));
    // One that has opened an export may be silent for as long as it likes.
    served.write_all(&raw_request(0, 1, 0, 512)).unwrap();
    served.read_exact(&mut [0; 16 + 512]).unwrap();
    let events = server.events();
    assert!(events.contains(&Event::TooManyClients));
    let idle = |e: &Event| matches!(e, Event::Closed { reason: CloseReason::NegotiationIdle, .. });
    assert!(events.iter().any(idle));
}

#[test]
fn opening_may_take_its_time_and_a_client_may_leave_meanwhile() {
    let config = Config { negotiation_idle: Duration::from_millis(200), ..Config::default() };
    let server = TestServer::with_config(&[export("r0/0", 1 << 20)], config);
    server.target(0, |t| t.freeze(true));
    let begin = || {
        let mut socket = UnixStream::connect(&server.socket).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.read_exact(&mut [0; 18]).unwrap();
        socket.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04r0/0").unwrap();
        socket
    };
    let (mut patient, impatient) = (begin(), begin());
    server.wait_for("both to be opening", |s| {
        s.on(0, |host, _| host.server.clients().filter(|c| c.export.is_some()).count()) == 2
    });
    drop(impatient);
    server.wait_for("the impatient one to be gone", |s| {
        s.on(0, |host, _| host.server.clients().count()) == 1
    });
    std::thread::sleep(Duration::from_millis(400));
    server.target(0, |t| t.freeze(false));
    patient.read_exact(&mut [0; 10]).unwrap();
    assert_eq!(server.target(0, |t| t.inner().openers()), 1);
}

#[test]
fn a_removed_export_lets_requests_finish_or_not_as_asked() {
    let exports = [export("gentle", 1 << 20), export("now", 1 << 20)];
    let server = TestServer::start(&exports);
    let (mut gentle, mut now) = (raw_client(&server, "gentle"), raw_client(&server, "now"));
    let write = [raw_request(1, 7, 0, 512), vec![1; 512]].concat();
    for (key, socket) in [&mut gentle, &mut now].into_iter().enumerate() {
        server.target(key, |t| t.freeze(true));
        socket.write_all(&write).unwrap();
    }
    server.wait_for("both writes to be in flight", |s| {
        s.on(0, |host, _| host.server.clients().map(|c| c.in_flight).sum::<usize>()) == 2
    });
    server.on(0, |host, ring| {
        let (server, targets) = (&mut host.server, &mut host.targets);
        assert!(server.remove_export(ring, targets, "gentle", Parting::Gentle));
        assert!(server.remove_export(ring, targets, "now", Parting::Now));
        assert!(!server.remove_export(ring, targets, "now", Parting::Now));
    });
    let mut rest = Vec::new();
    now.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    // What comes after the removal is refused; what was in flight is answered.
    gentle.write_all(&[raw_request(1, 8, 0, 512), vec![2; 512]].concat()).unwrap();
    let mut refused = [0; 16];
    gentle.read_exact(&mut refused).unwrap();
    assert_eq!((refused[7], refused[15]), (108, 8));
    server.target(0, |t| t.freeze(false));
    gentle.read_to_end(&mut rest).unwrap();
    assert_eq!((rest.len(), rest[7], rest[15]), (16, 0, 7));
    assert_eq!(server.content(0, 0, 1), [1]);
}

#[test]
fn clients_move_to_the_thread_of_their_export() {
    if !have(&["nbdinfo", "nbdsh", "qemu-img"]) {
        return;
    }
    let mut exports = Vec::new();
    for (thread, name) in [(0, "a"), (1, "b"), (2, "c")] {
        exports.push(Serve { thread, ..export(name, 16 << 20) });
    }
    let server = TestServer::start(&exports);
    // `--list` asks about each with an option of its own, on one connection or several.
    let list = ok("nbdinfo", &["--list", &server.unix_uri("")]);
    for name in ["a", "b", "c"] {
        assert!(list.contains(&format!("export=\"{name}\"")), "{list}");
    }
    for (byte, name) in [(1, "a"), (2, "b"), (3, "c")] {
        for uri in [server.unix_uri(name), server.tcp_uri(name)] {
            let script = format!(
                "h.pwrite(bytes([{byte}]) * 4096, 0); assert h.pread(1024, 512) == bytes([{byte}]) * 1024"
            );
            nbdsh(&uri, &script);
        }
    }
    for thread in 0..3 {
        let byte = server.on(thread, |host, _| {
            let mut byte = [0];
            host.targets.0[0].as_mut().unwrap().inner().peek(0, &mut byte);
            byte[0]
        });
        assert_eq!(byte as usize, thread + 1);
    }
    // INFO about exports of three threads and GO, all on one connection.
    let script = r#"
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(uri)
for name in ["a", "b", "c", "b"]:
    h.set_export_name(name)
    h.opt_info()
    assert h.get_size() == 16 << 20
h.opt_go()
assert h.pread(512, 0) == b"\x02" * 512
"#;
    ok("nbdsh", &["-c", &format!("uri = '{}'", server.unix_uri("a")), "-c", script]);
    // An export that is gone from its thread, but not yet from the catalogue of the first one.
    server.on(1, |host, ring| {
        host.server.remove_export(ring, &mut host.targets, "b", Parting::Now);
    });
    let error = fails("qemu-img", &["info", &server.unix_uri("b")]);
    assert!(error.contains("any more"), "{error}");
}

#[test]
fn new_connections_see_a_new_size_and_old_ones_keep_theirs() {
    if !have(&["nbdinfo"]) {
        return;
    }
    let server = TestServer::start(&[export("r0/0", 1 << 20)]);
    let mut old = raw_client(&server, "r0/0");
    // Another target under the same name stands for one that has grown.
    server.on(0, |host, _| {
        let info = TargetInfo { size: Bytes(2 << 20), ..export("", 1 << 20).info };
        let target = runtime::MemoryTarget::with_info(info);
        host.targets.0.push(Some(runtime::FaultyTarget::new(target, FaultPlan::none(1))));
        let place = Place::Here(TargetKey(1));
        let description = String::new();
        host.server
            .set_export("r0/0", Export { description, read_only: false, encrypted: false, place });
    });
    assert_eq!(ok("nbdinfo", &["--size", &server.unix_uri("r0/0")]).trim(), "2097152");
    old.write_all(&raw_request(0, 1, 1 << 20, 512)).unwrap();
    let mut reply = [0; 16];
    old.read_exact(&mut reply).unwrap();
    assert_eq!(reply[7], 22, "beyond the end as this connection knows it");
}

#[test]
fn qemu_nbd_serves_an_export_on() {
    if !have(&["qemu-nbd", "qemu-img"]) {
        return;
    }
    let server = TestServer::start(&[export("r0/0", 16 << 20)]);
    let relay = server.file("relay.sock");
    let socket = format!("--socket={}", relay.display());
    let upstream = server.unix_uri("r0/0");
    let mut daemon = Command::new("qemu-nbd")
        .args(["--format=raw", "--export-name=e0", "--persistent", "--shared=4", "--discard=unmap"])
        .args([&socket, &upstream])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    server.wait_for("the daemon to listen", |_| UnixStream::connect(&relay).is_ok());
    let data = pattern(9, 16 * MIB);
    let image = server.file("image");
    fs::write(&image, &data).unwrap();
    let uri = format!("nbd+unix:///e0?socket={}", relay.display());
    let image = image.to_str().unwrap();
    let result = client("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &uri]);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(result.status.success(), "{result:?}");
    assert!(server.content(0, 0, 16 * MIB) == data);
}
