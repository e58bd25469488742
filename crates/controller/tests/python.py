"""What python-linstor, as it is on PyPI, does with a controller: a cluster from nothing to nothing.

Called with the address of a controller with agents of the nodes n1, n2 and n3, and where these are
not simulated with the first three numbers of their addresses and the folder of their pools. Then it
says on its output what is to be done with a volume ("do OPEN NODE VOLUME"), and waits for a line."""
import sys
import tarfile
import tempfile
import time

import linstor
from linstor import consts

NETWORK = sys.argv[2] if len(sys.argv) > 2 else "10.0.0"
POOLS = sys.argv[3] if len(sys.argv) > 3 else "/srv"
lin = linstor.Linstor(sys.argv[1])
lin.connect()


def ok(replies, what):
    assert replies, what
    for reply in replies:
        assert not reply.is_error(), f"{what}: {reply}"
    return replies


def refused(replies, number, what):
    errors = [reply for reply in replies if reply.is_error(consts.MASK_ERROR)]
    assert errors, f"{what}: not refused: {replies}"
    codes = [reply.ret_code & 0x7FFF for reply in errors]
    assert number in codes, f"{what}: {number} is not in {codes}: {errors}"


def wait(condition, what):
    for _ in range(400):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"{what} does not come true")


def user(what, volume):
    """Somebody uses the volume on a node with a disk."""
    if len(sys.argv) > 3:
        node = sorted(r.node_name for r in resources(volume) if "DISKLESS" not in r.flags)[0]
        print("do", what, node, volume, flush=True)
        assert sys.stdin.readline() == "done\n", what


def resources(name=None):
    found = lin.resource_list_raise(filter_by_resources=[name] if name else None)
    return found.resources


# Nodes and pools.
for number, name in enumerate(["n1", "n2", "n3"]):
    ok(lin.node_create(name, consts.VAL_NODE_TYPE_STLT, f"{NETWORK}.{number + 1}"), "node create")
refused(lin.node_create("N1", consts.VAL_NODE_TYPE_STLT, "10.0.0.9"), 500, "same name")
nodes = lin.node_list_raise().nodes
assert sorted(node.name for node in nodes) == ["n1", "n2", "n3"]
online = lambda: all(n.connection_status == "ONLINE" for n in lin.node_list_raise().nodes)
wait(online, "nodes online")
ok(lin.netinterface_create("n1", "data", "10.1.0.1"), "interface create")
interfaces = [node for node in lin.node_list_raise().nodes if node.name == "n1"][0].net_interfaces
assert sorted(interface.name for interface in interfaces) == ["data", "default"]
ok(lin.netinterface_delete("n1", "data"), "interface delete")
for name in ["n1", "n2", "n3"]:
    ok(lin.storage_pool_create(name, "pool", "FILE_THIN", f"{POOLS}/{name}"), "pool create")
pools = lin.storage_pool_list_raise().storage_pools
assert len([pool for pool in pools if pool.name == "pool"]) == 3
assert all(pool.free_space.free_capacity > 0 for pool in pools)

# Disks that nobody uses; those of a real node are left alone.
disks = lin.physical_storage_list().physical_devices
if len(sys.argv) > 3:
    refused(lin.physical_storage_create_device_pool("n1", "LVM", ["/dev/null"], "never"), 990, "no disk")
else:
    assert [(d.size, d.rotational) for d in disks] == [(1 << 40, False), (4 << 40, True)], disks
    assert {node: [d.device for d in found] for node, found in disks[1].nodes.items()} == \
        {"n1": ["/dev/sdb", "/dev/sdc"], "n2": ["/dev/sdb"]}
    assert disks[0].nodes["n1"][0].model == "FAST" and disks[0].nodes["n1"][0].serial == "S1"
    create = lin.physical_storage_create_device_pool
    refused(create("n1", "LVM", ["/dev/sdb"], "slow", vdo_enable=True), 234, "VDO")
    refused(create("n1", "SPDK", ["/dev/sdb"], "slow"), 989, "SPDK")
    refused(create("n1", "LVM", ["/dev/sdx"], "slow"), 990, "no such disk")
    ok(create("n1", "LVM_THIN", ["/dev/sdb", "/dev/sdc"], "slow", storage_pool_name="disks",
              storage_pool_props={"PrefNic": "default"}), "create device pool")
    made = [pool for pool in lin.storage_pool_list_raise().storage_pools if pool.name == "disks"]
    assert made[0].properties["StorDriver/StorPoolName"] == "linstor_slow/slow", made
    refused(create("n2", "LVM", ["/dev/sdb"], "slow", storage_pool_name="pool"), 510, "pool exists")
    assert [d.size for d in lin.physical_storage_list().physical_devices] == [1 << 40, 4 << 40]
    ok(lin.storage_pool_delete("n1", "disks"), "pool delete")

# A group with two replicas, and ten volumes.
ok(lin.resource_group_create("grp", place_count=2, storage_pool=["pool"]), "group create")
ok(lin.volume_group_create("grp"), "volume group create")
size = lin.resource_group_query_size_info("grp")
assert size.space_info.max_vlm_size_in_kib > 0
for number in range(10):
    ok(lin.resource_group_spawn("grp", f"vol{number}", ["1GiB"]), "spawn")
assert len(lin.resource_dfn_list_raise().resource_definitions) == 10
refused(lin.resource_group_spawn("grp", "vol0", ["1GiB"]), 501, "spawn again")
refused(lin.resource_group_delete("grp"), 501, "group in use")
for number in range(10):
    own = resources(f"vol{number}")
    assert len([r for r in own if "DISKLESS" not in r.flags]) == 2, own
    assert len([r for r in own if "TIE_BREAKER" in r.flags]) == 1, own
states = {v.state.disk_state for v in lin.volume_list_raise().resources[0].volumes}
assert states <= {"UpToDate", "Diskless", "TieBreaker"}, states

# A port of the definition's own.
ok(lin.resource_dfn_create("ported", port=7950, resource_group="grp"), "definition with a port")
ok(lin.volume_dfn_create("ported", 65536), "volume definition")
ok(lin.resource_auto_place("ported", 2), "place")
ports = [r.layer_data.drbd_resource.tcp_ports for r in resources("ported")]
assert all(own == [7950] for own in ports), ports
ok(lin.resource_dfn_delete("ported"), "definition delete")

# Properties: what nothing acts on is refused.
ok(lin.resource_dfn_modify("vol0", {"Aux/who": "me"}), "aux")
refused(lin.resource_dfn_modify("vol0", {"Nonsense": "1"}), 213, "unknown property")
assert lin.resource_dfn_list_raise(filter_by_resource_definitions=["vol0"]).resource_definitions[0] \
    .properties["Aux/who"] == "me"
ok(lin.controller_set_prop("DrbdOptions/Net/ping-timeout", "10"), "controller property")
disk = [r.node_name for r in resources("vol0") if "DISKLESS" not in r.flags][0]
of_volume = lambda: lin.volume_list([disk], filter_by_resources=["vol0"])[0].resources[0].volumes[0].properties
own = {"Aux/who": "me", "DrbdOptions/Disk/disk-timeout": "600"}
ok(lin.volume_modify(disk, "vol0", 0, own), "properties of a volume")
assert of_volume() == own, of_volume()
ok(lin.volume_modify(disk, "vol0", 0, {}, ["DrbdOptions/Disk/disk-timeout"]), "and without one")
assert of_volume() == {"Aux/who": "me"}, of_volume()
for (number, what) in [(213, (disk, "vol0", 0, {"StorPoolName": "pool"})),
                       (304, (disk, "vol0", 7, {"Aux/who": "me"})),
                       (300, ("n9", "vol0", 0, {"Aux/who": "me"})),
                       (301, (disk, "never", 0, {"Aux/who": "me"}))]:
    refused(lin.volume_modify(*what), number, "property of a volume")
ok(lin.controller_del_prop("DrbdOptions/Net/ping-timeout"), "controller property deleted")

# What is asked of controller and agents at once.
ok(lin.controller_set_log_level(linstor.LogLevelEnum.DEBUG), "log level")
assert len(ok(lin.controller_set_log_level(linstor.LogLevelEnum.INFO, glob=True), "log levels")) == 4
ok(lin.node_set_log_level("n2", linstor.LogLevelEnum.WARN), "log level of a node")
refused(lin.node_set_log_level("never", linstor.LogLevelEnum.WARN), 300, "log level of no node")
refused(lin.controller_set_log_level(linstor.LogLevelEnum.INFO, library=True), 234, "log level of libraries")
ok(lin.controller_backupdb("monday"), "backup")
refused(lin.controller_backupdb("monday"), 242, "backup twice")
ok(lin.sos_report_create(nodes=["n1"]), "SOS report")
with tempfile.TemporaryDirectory() as folder:
    ok(lin.sos_report_download(to_file=f"{folder}/sos.tar.gz"), "SOS report download")
    names = [name.split("/", 1)[1] for name in tarfile.open(f"{folder}/sos.tar.gz").getnames()]
    assert "controller/resources.json" in names, names
    for node in ["n1", "n2", "n3"]:
        assert any(name.startswith(f"nodes/{node}/") for name in names), names
        assert f"nodes/{node}/missing.txt" not in names, names

# A snapshot, and its data in a new resource.
ok(lin.snapshot_create([], "vol0", "snap", False), "snapshot")
snapshots = lin.snapshot_dfn_list_raise().snapshots
assert [s.name for s in snapshots] == ["snap"] and "SUCCESSFUL" in snapshots[0].flags, snapshots
ok(lin.resource_dfn_create("copy", resource_group="grp"), "definition create")
ok(lin.snapshot_volume_definition_restore("vol0", "snap", "copy"), "restore volumes")
ok(lin.snapshot_resource_restore([], "vol0", "snap", "copy"), "restore resources")
assert len([r for r in resources("copy") if "DISKLESS" not in r.flags]) == 2
refused(lin.resource_dfn_delete("vol0"), 514, "definition with a snapshot")

# The data of a snapshot in the resource itself, and as they are in a clone.
ok(lin.resource_group_spawn("grp", "small", ["64MiB"]), "spawn")
current = lambda name: {v.state.disk_state for r in resources(name) for v in r.volumes}
wait(lambda: current("small") <= {"UpToDate", "Diskless", "TieBreaker"}, "small is UpToDate")
ok(lin.snapshot_create([], "small", "before", False), "snapshot")
ok(lin.snapshot_rollback("small", "before"), "rollback")
refused(lin.snapshot_rollback("small", "never"), 313, "rollback to nothing")
wait(lambda: current("small") <= {"UpToDate", "Diskless", "TieBreaker"}, "rolled back")
started = lin.resource_dfn_clone("small", "clone", property_dict={"Aux/who": "you"})
assert (started.source_name, started.clone_name) == ("small", "clone"), started
refused(lin.resource_dfn_clone("small", "clone").messages, 501, "clone again")
refused(lin.resource_dfn_clone("never", "clone2").messages, 301, "clone of nothing")
ok(started.messages, "clone")
assert lin.resource_dfn_clone_wait_complete("small", "clone", timeout=60)
assert len([r for r in resources("clone") if "DISKLESS" not in r.flags]) == 2
wait(lambda: current("clone") <= {"UpToDate", "Diskless", "TieBreaker"}, "the clone is UpToDate")
cloned = lin.resource_dfn_list_raise(filter_by_resource_definitions=["clone"]).resource_definitions[0]
assert cloned.properties["Aux/who"] == "you" and not cloned.flags, cloned
names = lambda: sorted(snapshot.name for snapshot in lin.snapshot_dfn_list_raise().snapshots)
wait(lambda: names() == ["before", "snap"], "the clone's snapshot goes")

# Two resources at one point in time.
ok(lin.snapshot_create_multi([], ["vol4", "vol5"], "both"), "snapshots of two")
both = [s for s in lin.snapshot_dfn_list_raise().snapshots if s.name == "both"]
assert len(both) == 2 and all("SUCCESSFUL" in s.flags for s in both), both

# A volume grows while it is in use; it does not shrink.
user("open", "vol1")
ok(lin.volume_dfn_modify("vol1", 0, size=2 * 1024 * 1024), "grow")
grown = lin.resource_dfn_list_raise(filter_by_resource_definitions=["vol1"]).resource_definitions[0]
assert grown.volume_definitions[0].size == 2 * 1024 * 1024
assert "RESIZE" not in grown.volume_definitions[0].flags, grown.volume_definitions[0].flags
user("close", "vol1")
refused(lin.volume_dfn_modify("vol1", 0, size=1024 * 1024), 206, "shrink")

# The tie-breaker gets a disk and loses it again.
third = [r.node_name for r in resources("vol2") if "TIE_BREAKER" in r.flags][0]
ok(lin.resource_toggle_disk(third, "vol2", storage_pool="pool"), "toggle to diskful")
assert len([r for r in resources("vol2") if "DISKLESS" not in r.flags]) == 3
ok(lin.resource_toggle_disk(third, "vol2", diskless=True), "toggle to diskless")
wait(lambda: len([r for r in resources("vol2") if "DISKLESS" in r.flags]) == 1, "diskless again")

# A replica is taken down on its node, and comes up again.
def activity(name):
    states = {r.node_name: r for r in resources(name) if "DISKLESS" not in r.flags}
    return {node: "INACTIVE" in r.flags for node, r in states.items()}


first, second = sorted(activity("vol6"))
user("open", "vol6")
wait(lambda: len(sys.argv) <= 3 or any(s.in_use for s in lin.resource_list_raise(
    filter_by_resources=["vol6"]).resource_states), "vol6 is in use")
if len(sys.argv) > 3:
    refused(lin.resource_deactivate(first, "vol6"), 997, "deactivate what is in use")
said = ok(lin.resource_deactivate(second, "vol6"), "deactivate")
assert any(reply.is_warning() and reply.ret_code & 0x7FFF == 1018 for reply in said), said
assert activity("vol6") == {first: False, second: True}, activity("vol6")
down = [r for r in resources("vol6") if r.node_name == second][0]
assert not down.volumes[0].state.disk_state, down.volumes[0].state
peer = [r for r in resources("vol6") if r.node_name == first][0]
assert second not in peer.layer_data.drbd_resource.connections, "nobody misses it"
ok(lin.resource_deactivate(second, "vol6"), "deactivate again")
refused(lin.resource_deactivate(first, "vol6"), 997 if len(sys.argv) > 3 else 991, "deactivate the last")
refused(lin.volume_dfn_modify("vol6", 0, size=2 * 1024 * 1024), 974, "grow without it")
refused(lin.resource_toggle_disk(second, "vol6", diskless=True), 243, "toggle what is inactive")
refused(lin.resource_deactivate(second, "never"), 301, "deactivate nothing")
refused(lin.resource_activate("n9", "vol6"), 300, "activate nowhere")
ok(lin.resource_activate(second, "vol6"), "activate")
ok(lin.resource_activate(second, "vol6"), "activate again")
assert activity("vol6") == {first: False, second: False}, activity("vol6")
wait(lambda: all(v.state.disk_state == "UpToDate" for r in resources("vol6")
                 if "DISKLESS" not in r.flags for v in r.volumes), "vol6 is UpToDate again")
ok(lin.volume_dfn_modify("vol6", 0, size=2 * 1024 * 1024), "grow with it")
user("close", "vol6")

# A diskless resource is attached and detached, as by CSI; placing again does nothing.
ok(lin.resource_make_available("n3", "vol3"), "make available")
again = ok(lin.resource_auto_place("vol3", 2), "place again")
assert any(reply.ret_code & 0x7FFF == 1006 for reply in again), again

# The master passphrase, and an encrypted volume.
refused(lin.crypt_enter_passphrase("swordfish"), 512, "no passphrase yet")
ok(lin.crypt_create_passphrase("swordfish"), "create passphrase")
refused(lin.crypt_create_passphrase("goldfish"), 512, "another passphrase")
refused(lin.crypt_modify_passphrase("goldfish", "jellyfish"), 600, "wrong passphrase")
ok(lin.crypt_modify_passphrase("swordfish", "jellyfish"), "modify passphrase")
ok(lin.crypt_enter_passphrase("jellyfish"), "enter passphrase")
ok(lin.resource_dfn_create("enc", layer_list=["DRBD", "LUKS", "STORAGE"]), "encrypted definition")
ok(lin.volume_dfn_create("enc", 65536), "encrypted volume definition")
ok(lin.resource_auto_place("enc", 2), "encrypted volume")
stacks = [r.layer_data for r in resources("enc") if "DISKLESS" not in r.flags]
assert [stack.type for stack in stacks] == ["DRBD", "DRBD"], stacks
assert all(stack.children[0].type == "LUKS" for stack in stacks), stacks
wait(lambda: all(v.state.disk_state == "UpToDate" for r in resources("enc")
                 if "DISKLESS" not in r.flags for v in r.volumes), "encrypted volume up to date")
down = sorted(activity("enc"))[0]
ok(lin.volume_dfn_modify_passphrase("enc", 0, "my own"), "passphrase of a volume")
refused(lin.volume_dfn_modify_passphrase("enc", 0, ""), 216, "empty passphrase")
refused(lin.volume_dfn_modify_passphrase("enc", 7, "my own"), 303, "passphrase of no volume")
refused(lin.volume_dfn_modify_passphrase("vol0", 0, "my own"), 225, "passphrase of what is not encrypted")
ok(lin.resource_deactivate(down, "enc"), "deactivate what is encrypted")
luks = [r.layer_data.children[0] for r in resources("enc") if r.node_name == down][0]
assert luks.type == "LUKS" and activity("enc")[down], luks
ok(lin.resource_activate(down, "enc"), "activate what is encrypted")
wait(lambda: all(v.state.disk_state == "UpToDate" for r in resources("enc")
                 if "DISKLESS" not in r.flags for v in r.volumes), "encrypted volume up to date again")

# The key-value store.
kv = linstor.KV("instance", uri=sys.argv[1])
kv["key"] = "value"
assert linstor.KV("instance", uri=sys.argv[1])["key"] == "value"
del kv["key"]

# Backups by schedule. None is due while this runs.
ok(lin.remote_create_s3("vault", "http://127.0.0.1:9", "eu-1", "bucket", "key", "secret"), "remote")
refused(lin.schedule_create("daily", "0 25 * * *"), 240, "no such hour")
ok(lin.schedule_create("daily", "0 0 31 12 *", keep_local=3, on_failure="RETRY", max_retries=2,
                       incremental_cron="0 0 30 12 *"), "schedule")
refused(lin.schedule_create("DAILY", "0 0 31 12 *"), 528, "schedule twice")
ok(lin.schedule_modify("daily", keep_remote=5, keep_local=-1, max_retries=0), "modify schedule")
refused(lin.schedule_modify("never", keep_remote=5), 323, "modify no schedule")
refused(lin.schedule_modify("daily", keep_remote=0), 238, "keep nothing")
found = lin.schedule_list().schedules
assert [s.schedule_name for s in found] == ["daily"], found
assert (found[0].full_cron, found[0].inc_cron) == ("0 0 31 12 *", "0 0 30 12 *"), found
assert (found[0].keep_local, found[0].keep_remote) == (None, 5), found
assert (found[0].on_failure, found[0].max_retries) == ("RETRY", 0), found
refused(lin.backup_schedule_enable("never", "daily"), 321, "enable with no remote")
refused(lin.backup_schedule_enable("vault", "never"), 323, "enable no schedule")
refused(lin.backup_schedule_enable("vault", "daily", resource_name="never"), 301, "enable on nothing")
refused(lin.backup_schedule_enable("vault", "daily", "vol0", "grp"), 234, "enable on two things")
refused(lin.backup_schedule_enable("vault", "daily", dst_rsc_grp="grp"), 234, "enable for another cluster")
ok(lin.backup_schedule_enable("vault", "daily"), "enable everywhere")
ok(lin.backup_schedule_disable("vault", "daily", resource_group_name="grp"), "disable on a group")
ok(lin.backup_schedule_enable("vault", "daily", resource_name="vol0", preferred_node="n2"), "enable on vol0")


def by_schedule(**filters):
    listed = lin.schedule_list_by_resource(**filters)[0].schedule_resources
    return {row.resource_name: row for row in listed}


rows = by_schedule()
vol0 = rows["vol0"]
assert (vol0.remote_name, vol0.schedule_name, vol0.reason) == ("vault", "daily", None), vol0
assert vol0.last_snap_time is None and vol0.next_exec_time is not None, vol0
assert vol0.next_planned_full > vol0.next_planned_inc or vol0.next_exec_inc is False, vol0
active = by_schedule(active_only=True)
assert "vol0" in active and all(row.reason is None for row in active.values()), active
assert by_schedule(filter_by_resource="vol0").keys() == {"vol0"}
assert by_schedule(filter_by_schedule="never") == {}
detail = lin.schedule_list_by_resource_details("vol0")[0].schedule_resources[0]
assert (detail.controller, detail.resource_definition) == (True, True), detail
ok(lin.backup_schedule_disable("vault", "daily", resource_name="vol0"), "disable on vol0")
assert "disabled" in by_schedule(filter_by_resource="vol0")["vol0"].reason
ok(lin.backup_schedule_delete("vault", "daily", resource_name="vol0"), "say nothing of vol0")
ok(lin.schedule_delete("daily"), "delete schedule")
assert lin.schedule_list().schedules == [] and by_schedule(active_only=True) == {}
ok(lin.remote_delete("vault"), "remote delete")

# A node is emptied, and taken back.
ok(lin.node_evacuate("n1"), "evacuate")
# The snapshot and its resource stay: they were restored there, and take no new place by themselves.
moved = lambda: not [r for r in resources() if r.node_name == "n1" and "DISKLESS" not in r.flags]
wait(moved, "evacuation")
ok(lin.node_restore("n1"), "restore")

# Everything goes.
for snapshot in lin.snapshot_dfn_list_raise().snapshots:
    ok(lin.snapshot_delete(snapshot.rsc_name, snapshot.name), "snapshot delete")
for definition in lin.resource_dfn_list_raise().resource_definitions:
    ok(lin.resource_dfn_delete(definition.name), "definition delete")
wait(lambda: not lin.resource_dfn_list_raise().resource_definitions, "definitions gone")
ok(lin.resource_group_delete("grp"), "group delete")
for name in ["n1", "n2", "n3"]:
    ok(lin.storage_pool_delete(name, "pool"), "pool delete")
for name in ["n1", "n2", "n3"]:
    ok(lin.node_delete(name), "node delete")
wait(lambda: not lin.node_list_raise().nodes, "nodes gone")
gone = lin.resource_dfn_delete("never")
assert not gone[0].is_error() and gone[0].ret_code & 0x7FFF == 3000, gone
lin.disconnect()
print("done")
