//! Connections with properties, the key-value store, and what is left out as a whole.

use super::*;

/// Tables whose rows become objects, or are left out row by row.
const KNOWN: [&str; 30] = [
    "EBS_REMOTES",
    "FILES",
    "KEY_VALUE_STORE",
    "LAYER_BCACHE_VOLUMES",
    "LAYER_CACHE_VOLUMES",
    "LAYER_DRBD_RESOURCES",
    "LAYER_DRBD_RESOURCE_DEFINITIONS",
    "LAYER_DRBD_VOLUMES",
    "LAYER_DRBD_VOLUME_DEFINITIONS",
    "LAYER_LUKS_VOLUMES",
    "LAYER_RESOURCE_IDS",
    "LAYER_STORAGE_VOLUMES",
    "LAYER_WRITECACHE_VOLUMES",
    "LINSTOR_REMOTES",
    "NODES",
    "NODE_CONNECTIONS",
    "NODE_NET_INTERFACES",
    "NODE_STOR_POOL",
    "PROPS_CONTAINERS",
    "RESOURCES",
    "RESOURCE_CONNECTIONS",
    "RESOURCE_DEFINITIONS",
    "RESOURCE_GROUPS",
    "S3_REMOTES",
    "SCHEDULES",
    "STOR_POOL_DEFINITIONS",
    "VOLUMES",
    "VOLUME_CONNECTIONS",
    "VOLUME_DEFINITIONS",
    "VOLUME_GROUPS",
];

/// What has properties, by the beginning of their instances' names.
const OWNERS: [&str; 15] = [
    "/CTRL",
    "/STLT",
    "/NODES/",
    "/STOR_POOL_DFNS/",
    "/STOR_POOLS/",
    "/RSC_GRPS/",
    "/VLM_GRPS/",
    "/RSC_DFNS/",
    "/VLM_DFNS/",
    "/RSCS/",
    "/VLMS/",
    "/NODE_CONNS/",
    "/RSC_CONNS/",
    "/KVS/",
    "/SNAP",
];

impl Import<'_> {
    pub(super) fn connections(&mut self) -> Result<(), String> {
        for row in self.export.rows::<tables::NodeConnection>("NODE_CONNECTIONS")? {
            let ends = self.node(&row.node_name_src).zip(self.node(&row.node_name_dst));
            let Some((a, b)) = ends else { continue };
            let (a, b) = cluster::model::ordered(&a.name, &b.name);
            let of = format!("connection of nodes {a} and {b}");
            let instance = format!("/NODE_CONNS/{}/{}", row.node_name_src, row.node_name_dst);
            let props = self.props(&instance, Owner::NodeConnection, &of);
            if !props.is_empty() {
                self.model.put(Object::NodeConnection(a, b, props));
            }
        }
        for row in self.export.rows::<tables::ResourceConnection>("RESOURCE_CONNECTIONS")? {
            let name = ResourceName::new(&row.resource_name).ok();
            let Some(name) = name.and_then(|name| self.model.definition(&name)) else { continue };
            let name = name.name.clone();
            let ends = self.node(&row.node_name_src).zip(self.node(&row.node_name_dst));
            let Some((a, b)) = ends.filter(|_| row.snapshot_name.is_empty()) else { continue };
            let (a, b) = cluster::model::ordered(&a.name, &b.name);
            let of = format!("connection of {name} at {a} and {b}");
            if row.tcp_port_src.or(row.tcp_port_dst).is_some() {
                self.leave_out(
                    &of,
                    "it has ports of its own, and those of the resources are used here",
                );
            }
            let ends = format!("{}/{}", row.node_name_src, row.node_name_dst);
            let instance = format!("/RSC_CONNS/{ends}/{}", row.resource_name);
            let props = self.props(&instance, Owner::ResourceConnection, &of);
            if !props.is_empty() {
                self.model.put(Object::ResourceConnection(name, a, b, props));
            }
        }
        Ok(())
    }

    pub(super) fn small(&mut self) -> Result<(), String> {
        for row in self.export.rows::<tables::Store>("KEY_VALUE_STORE")? {
            let Some(name) = self.name(StoreName::new(&row.kvs_dsp_name)) else { continue };
            let props = self.props.remove(&format!("/KVS/{}", row.kvs_name)).unwrap_or_default();
            self.model.put(Object::Store(name, props));
        }
        for (table, kind, next) in [
            ("EBS_REMOTES", "remote", "there are no EBS volumes here"),
            ("S3_REMOTES", "remote", "its keys are encrypted by LINSTOR: create it anew"),
            (
                "LINSTOR_REMOTES",
                "remote",
                "other clusters have to be told of this one: create it anew",
            ),
            ("SCHEDULES", "schedule", "create it anew, with the remotes that it is for"),
        ] {
            for row in self.export.rows::<tables::Named>(table)? {
                if row.dsp_name != OWN_REMOTE {
                    self.leave_out(format!("{kind} {}", row.dsp_name), next);
                }
            }
        }
        for row in self.export.rows::<tables::File>("FILES")? {
            let Some(path) = self.name(FilePath::new(&row.path)) else { continue };
            let Ok(content) = BASE64_STANDARD.decode(&row.content) else {
                self.leave_out(format!("file {path}"), "its content is not in base64");
                continue;
            };
            let resources = self.files.remove(path.as_str()).unwrap_or_default();
            let uuid = uuid(&row.uuid);
            self.model.put(Object::File(ExternalFile { path, uuid, content, resources }));
        }
        for table in self.export.others(&KNOWN) {
            self.left_out.push(LeftOut {
                what: format!("what is in its table {table}"),
                why: "nothing here is like it".to_owned(),
            });
        }
        // What is left belongs to objects that are left out, or is of a kind that nobody knows.
        for (instance, props) in std::mem::take(&mut self.props) {
            if !OWNERS.iter().any(|owner| instance.starts_with(owner)) {
                let keys: Vec<&str> = props.keys().map(String::as_str).collect();
                let what = format!("properties {} of {instance}", keys.join(", "));
                self.leave_out(what, "what has them is not known here");
            }
        }
        Ok(())
    }
}
