//! Resource definitions with their volumes and resources.

use super::*;

/// What the tables of the layers say, by what they belong to. Names are as the tables compare them.
struct Layers {
    /// Of each resource: a layer's kind, suffix and id.
    of: BTreeMap<(String, String), Vec<tables::LayerId>>,
    drbd: BTreeMap<u64, tables::DrbdResource>,
    definitions: BTreeMap<String, tables::DrbdDefinition>,
    minors: BTreeMap<(String, u16), Minor>,
    /// The pool of a volume, by the id of its layer.
    pools: BTreeMap<(u64, u16), String>,
}

impl Layers {
    fn read(export: &Export) -> Result<Layers, String> {
        let mut of: BTreeMap<_, Vec<tables::LayerId>> = BTreeMap::new();
        for row in export.rows::<tables::LayerId>("LAYER_RESOURCE_IDS")? {
            if row.snapshot_name.is_empty() {
                let key = (row.resource_name.clone(), row.node_name.clone());
                of.entry(key).or_default().push(row);
            }
        }
        let drbd = export.rows::<tables::DrbdResource>("LAYER_DRBD_RESOURCES")?;
        let definitions =
            export.rows::<tables::DrbdDefinition>("LAYER_DRBD_RESOURCE_DEFINITIONS")?;
        let minors =
            export.rows::<tables::DrbdVolumeDefinition>("LAYER_DRBD_VOLUME_DEFINITIONS")?;
        let pools = export.rows::<tables::StorageVolume>("LAYER_STORAGE_VOLUMES")?;
        Ok(Layers {
            of,
            drbd: drbd.into_iter().map(|row| (row.layer_resource_id, row)).collect(),
            definitions: definitions
                .into_iter()
                .filter(|row| row.snapshot_name.is_empty())
                .map(|row| (row.resource_name.clone(), row))
                .collect(),
            minors: minors
                .into_iter()
                .filter(|row| row.snapshot_name.is_empty())
                .filter_map(|row| Some(((row.resource_name, row.vlm_nr), Minor(row.vlm_minor_nr?))))
                .collect(),
            pools: pools
                .into_iter()
                .map(|row| ((row.layer_resource_id, row.vlm_nr), row.stor_pool_name))
                .collect(),
        })
    }

    /// All layers of a resource definition's resources.
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a tables::LayerId> {
        let from = (name.to_owned(), String::new());
        let all = self.of.range(from..).take_while(move |((of, _), _)| of == name);
        all.flat_map(|(_, layers)| layers)
    }

    /// A layer of a resource, the one without a suffix.
    fn id(&self, name: &str, node: &str, kind: &str) -> Option<u64> {
        let layers = self.of.get(&(name.to_owned(), node.to_owned()))?;
        let is = |layer: &&tables::LayerId| {
            layer.layer_resource_kind == kind && layer.layer_resource_suffix.is_empty()
        };
        layers.iter().find(is).map(|layer| layer.layer_resource_id)
    }
}

impl Import<'_> {
    pub(super) fn definitions(&mut self) -> Result<(), String> {
        let layers = Layers::read(self.export)?;
        let mut all: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for row in self.export.rows::<tables::VolumeDefinition>("VOLUME_DEFINITIONS")? {
            if row.snapshot_name.is_empty() {
                all.entry(row.resource_name.clone()).or_default().push(row);
            }
        }
        let rows = self.export.rows::<tables::Definition>("RESOURCE_DEFINITIONS")?;
        let spelled: BTreeMap<String, String> = rows
            .iter()
            .filter_map(|row| Some((row.resource_name.clone(), row.resource_dsp_name.clone()?)))
            .collect();
        for row in &rows {
            if !row.snapshot_name.is_empty() {
                let of = spelled.get(&row.resource_name).unwrap_or(&row.resource_name);
                self.leave_out(
                    format!("snapshot {} of {of}", row.snapshot_dsp_name),
                    "it stays in the storage pools, where nothing here knows of it; delete it with LINSTOR \
                     if nobody needs it",
                );
                continue;
            }
            let name = row.resource_dsp_name.as_deref().unwrap_or(&row.resource_name);
            let Some(name) = self.name(ResourceName::new(name)) else { continue };
            let volumes = all.get(&row.resource_name).map_or(&[][..], Vec::as_slice);
            if let Err(why) = self.definition(row, name.clone(), volumes, &layers) {
                self.leave_out(format!("resource definition {name} and its resources"), why);
            }
        }
        self.resources(&layers)?;
        self.give_minors()
    }

    /// Takes a resource definition over.
    ///
    /// # Errors
    /// Why it can not be one here.
    fn definition(
        &mut self,
        row: &tables::Definition,
        name: ResourceName,
        volumes: &[tables::VolumeDefinition],
        layers: &Layers,
    ) -> Result<(), String> {
        if row.resource_flags != 0 {
            return Err("it is being deleted, restored or cloned: wait until that has ended".into());
        }
        let words: Option<Vec<String>> = listed(Some(&row.layer_stack), "its layer stack")?;
        let words = words.unwrap_or_else(|| {
            // It was left to the resources.
            let used =
                layers.all(&row.resource_name).map(|layer| layer.layer_resource_kind.clone());
            let used: BTreeSet<String> = used.collect();
            if used.is_empty() {
                vec!["DRBD".into(), "STORAGE".into()]
            } else {
                used.into_iter().collect()
            }
        });
        let mut stack = words
            .iter()
            .map(|word| layer::parse(word).map_err(|refusal| refusal.to_string()))
            .collect::<Result<Vec<Layer>, String>>()?;
        stack.sort();
        let (stack, _) = layer::stack(&stack).map_err(|refusal| refusal.to_string())?;
        if stack.contains(&Layer::Luks) {
            return Err(
                "its volumes are encrypted, each with a passphrase that LINSTOR keeps; copy \
                        them to new volumes that are encrypted here"
                    .into(),
            );
        }
        if layers.all(&row.resource_name).any(|layer| !layer.layer_resource_suffix.is_empty()) {
            return Err(
                "its metadata are in other volumes than its data, and have to be behind them \
                        here"
                    .into(),
            );
        }
        let replicated = stack.contains(&Layer::Drbd);
        let drbd = layers.definitions.get(&row.resource_name);
        if let Some(drbd) = drbd.filter(|drbd| drbd.transport_type != "IP") {
            return Err(format!("there is no transport {} here", drbd.transport_type));
        }
        let group = GroupName::new(&row.resource_group_name).ok();
        let Some(group) = group.and_then(|group| self.model.group(&group)) else {
            return Err(format!("its resource group {} is left out", row.resource_group_name));
        };
        let group = group.name.clone();
        let external_name = match &row.resource_external_name {
            None => None,
            Some(text) => {
                let bytes = BASE64_STANDARD.decode(text).ok();
                let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
                Some(text.ok_or("its external name is not UTF-8 in base64")?)
            }
        };
        let of = format!("resource definition {name}");
        let known = ENCRYPTED | GROSS_SIZE | INITIALIZED;
        if let Some(volume) = volumes.iter().find(|volume| volume.vlm_flags & !known != 0) {
            let number = volume.vlm_nr;
            return Err(format!(
                "volume {number} is growing or being deleted: wait until that has ended"
            ));
        }
        let deployed = layers.all(&row.resource_name).next().is_some();
        let mut made = BTreeMap::new();
        for volume in volumes {
            let instance = format!("/VLM_DFNS/{}/{}", row.resource_name, volume.vlm_nr);
            let its = self.props.get(&instance);
            let its = |key: &str| its.and_then(|props| props.get(key)).cloned();
            if let Some(size) = its("DrbdOptions/Disk/block-size").filter(|size| size != "512") {
                // Partition tables count in blocks.
                let number = volume.vlm_nr;
                return Err(format!(
                    "volume {number} has blocks of {size} bytes, and volumes here have 512"
                ));
            }
            let first = its("DrbdCurrentGi").and_then(|text| u64::from_str_radix(&text, 16).ok());
            let day_0 = first.map_or_else(|| self.generation(), GenUuid);
            let of = format!("volume {} of {of}", volume.vlm_nr);
            let props = self.props(&instance, Owner::VolumeDefinition, &of);
            let mut flags = BTreeSet::new();
            if volume.vlm_flags & GROSS_SIZE != 0 {
                flags.insert(VolumeDefinitionFlag::GrossSize);
            }
            if volume.vlm_flags & INITIALIZED != 0 || deployed {
                // No replica that is made later begins anew.
                flags.insert(VolumeDefinitionFlag::DrbdInitialized);
            }
            let minor = layers.minors.get(&(row.resource_name.clone(), volume.vlm_nr)).copied();
            made.insert(
                VolumeNr(volume.vlm_nr),
                VolumeDefinition {
                    uuid: uuid(&volume.uuid),
                    size: Bytes(volume.vlm_size * 1024),
                    minor: minor.filter(|_| replicated),
                    props,
                    flags,
                    passphrase: None,
                    passphrase_changes: 0,
                    day_0,
                    initial_on: None,
                    passed_on: false,
                },
            );
        }
        let instance = format!("/RSC_DFNS/{}", row.resource_name);
        let mut its = self.props.get(&instance).cloned().unwrap_or_default();
        let set_by = its.remove(QUORUM_SET_BY);
        for path in its.keys().filter_map(|key| key.strip_prefix("files")) {
            self.files.entry(path.to_owned()).or_default().insert(name.clone());
        }
        self.props.insert(instance.clone(), its);
        let mut props = self.props(&instance, Owner::Definition, &of);
        // Else it follows from the replicas, as there.
        props.extend(set_by.map(|who| (QUORUM_SET_BY.to_owned(), who)));
        // Also after those of resources that are left out: disks keep bitmaps for them.
        let ids = layers
            .all(&row.resource_name)
            .filter_map(|layer| layers.drbd.get(&layer.layer_resource_id));
        let next = ids.map(|drbd| drbd.node_id.saturating_add(1)).max().unwrap_or(0);
        let secret = drbd.and_then(|drbd| drbd.secret.clone()).unwrap_or_else(|| self.secret());
        self.model.put(Object::Definition(Definition {
            name,
            external_name,
            uuid: uuid(&row.uuid),
            group,
            props,
            flags: BTreeSet::new(),
            layers: stack,
            secret,
            peer_slots: drbd.map_or(7, |drbd| drbd.peer_slots),
            port: drbd.and_then(|drbd| drbd.tcp_port),
            next_node_id: next % 32,
            volumes: made,
            rollback: None,
            clone_of: None,
            generation: FIRST,
        }));
        Ok(())
    }

    fn resources(&mut self, layers: &Layers) -> Result<(), String> {
        let mut all: BTreeMap<(String, String), Vec<_>> = BTreeMap::new();
        for row in self.export.rows::<tables::Volume>("VOLUMES")? {
            if row.snapshot_name.is_empty() {
                let key = (row.resource_name.clone(), row.node_name.clone());
                all.entry(key).or_default().push(row);
            }
        }
        for row in self.export.rows::<tables::Resource>("RESOURCES")? {
            let name = ResourceName::new(&row.resource_name).ok();
            let Some(definition) = name.and_then(|name| self.model.definition(&name)).cloned()
            else {
                // It was said of its definition.
                continue;
            };
            if !row.snapshot_name.is_empty() {
                continue;
            }
            let key = (row.resource_name.clone(), row.node_name.clone());
            let volumes = all.get(&key).map_or(&[][..], Vec::as_slice);
            if let Err(why) = self.resource(&row, &definition, volumes, layers) {
                let node = self.node(&row.node_name);
                let node = node.map_or(row.node_name.clone(), |node| node.name.to_string());
                self.leave_out(format!("resource {} on node {node}", definition.name), why);
            }
        }
        Ok(())
    }

    fn resource(
        &mut self,
        row: &tables::Resource,
        definition: &Definition,
        volumes: &[tables::Volume],
        layers: &Layers,
    ) -> Result<(), String> {
        let node = self.node(&row.node_name).ok_or("its node is left out")?.name;
        if row.resource_flags & !(DISKLESS | TIE_BREAKER | DRBD_DISKLESS | AUTO_DISKFUL) != 0 {
            return Err(
                "it is being changed, is inactive, or belongs to an evicted node: end that, or \
                        delete it, first"
                    .into(),
            );
        }
        let diskless = row.resource_flags & DISKLESS != 0;
        let mut flags = BTreeSet::new();
        for (bit, flag) in [
            (DISKLESS, ResourceFlag::Diskless),
            (TIE_BREAKER, ResourceFlag::TieBreaker),
            (DRBD_DISKLESS, ResourceFlag::DrbdDiskless),
        ] {
            if row.resource_flags & bit != 0 {
                flags.insert(flag);
            }
        }
        let (mut node_id, mut port) = (None, None);
        if definition.layers.contains(&Layer::Drbd) {
            let drbd = layers.id(&row.resource_name, &row.node_name, "DRBD");
            let drbd = drbd.and_then(|id| layers.drbd.get(&id)).ok_or("it has no DRBD node id")?;
            let id = NodeId::new(drbd.node_id).ok_or("its DRBD node id is beyond 31")?;
            let ports: Option<Vec<u16>> =
                listed(drbd.tcp_port_list.as_deref(), "its list of ports")?;
            match ports.as_deref() {
                Some([one]) => port = Some(*one),
                Some(_) => return Err("it has several ports, and one is used here".into()),
                // Before LINSTOR 1.32 it was one for all of its nodes.
                None => port = Some(definition.port.ok_or("it has no port")?),
            }
            node_id = Some(id);
        }
        let storage = layers.id(&row.resource_name, &row.node_name, "STORAGE");
        let storage = storage.ok_or("it has no layer STORAGE")?;
        let mut made = BTreeMap::new();
        for volume in volumes {
            let number = VolumeNr(volume.vlm_nr);
            if !definition.volumes.contains_key(&number) {
                return Err(format!("its volume {} has no definition", volume.vlm_nr));
            }
            let pool = layers.pools.get(&(storage, volume.vlm_nr)).ok_or("a volume has no pool")?;
            let known = PoolName::new(pool).ok().and_then(|pool| self.model.pool(&node, &pool));
            let Some(pool) = known else {
                return Err(format!("its storage pool {pool} is left out"));
            };
            let (pool, has_device) = (pool.name.clone(), pool.provider.has_device());
            if has_device == diskless {
                return Err("its volumes are in pools that do not fit to what it is".into());
            }
            let instance =
                format!("/VLMS/{}/{}/{}", row.node_name, row.resource_name, volume.vlm_nr);
            let of = format!("volume {} of {} on {node}", volume.vlm_nr, definition.name);
            let props = self.props(&instance, Owner::Volume, &of);
            made.insert(number, Volume { uuid: uuid(&volume.uuid), pool, props, adopt: !diskless });
        }
        if made.len() != definition.volumes.len() {
            return Err("it lacks volumes of its definition: wait until they are made".into());
        }
        let of = format!("resource {} on {node}", definition.name);
        let instance = format!("/RSCS/{}/{}", row.node_name, row.resource_name);
        let props = self.props(&instance, Owner::Resource, &of);
        self.model.put(Object::Resource(Resource {
            name: definition.name.clone(),
            node,
            uuid: uuid(&row.uuid),
            created: Millis(row.create_timestamp.unwrap_or_default()),
            props,
            flags,
            node_id,
            port,
            volumes: made,
            deactivated: None,
        }));
        Ok(())
    }

    /// Volumes that LINSTOR has given no minor yet get one: here they have one from the beginning.
    fn give_minors(&mut self) -> Result<(), String> {
        let replicated = |d: &&Definition| d.layers.contains(&Layer::Drbd);
        let names: Vec<ResourceName> =
            self.model.definitions().filter(replicated).map(|d| d.name.clone()).collect();
        for name in names {
            let mut definition = self.model.definition(&name).cloned().expect("it is there");
            let without = definition.volumes.iter().filter(|(_, volume)| volume.minor.is_none());
            for number in without.map(|(number, _)| *number).collect::<Vec<_>>() {
                let minor = self.model.next_minor().map_err(|refusal| refusal.to_string())?;
                definition.volumes.get_mut(&number).expect("it is one of them").minor = Some(minor);
                self.model.put(Object::Definition(definition.clone()));
            }
        }
        Ok(())
    }
}
