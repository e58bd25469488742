//! LVM and LVM_THIN: volumes are logical volumes of a volume group, or thin ones of a thin pool.
//!
//! A snapshot is a read-only thin volume that is not activated by itself. Thick volumes have none:
//! LVM's old snapshots slow every write down and break when they are full.

pub(crate) mod filter;

use std::path::PathBuf;

use serde::Deserialize;
use vocab::Bytes;

use super::{Error, Kind, Name, Provider, Space, Volume, Why, fits, rounded};
use crate::command::{Failure, Runner};

const PACKAGE: &str = "lvm2";

/// A volume group, or a thin pool in one.
#[derive(Debug)]
pub struct Group<R> {
    run: R,
    group: Name,
    thin_pool: Option<Name>,
}

/// A row of `lvs`.
#[derive(Clone, Debug, Deserialize)]
struct Row {
    lv_name: String,
    lv_attr: String,
    #[serde(deserialize_with = "number")]
    lv_size: u64,
    pool_lv: String,
    origin: String,
    data_percent: String,
    metadata_percent: String,
    lv_path: String,
}

/// A row of `vgs`.
#[derive(Clone, Copy, Debug, Deserialize)]
struct GroupRow {
    #[serde(deserialize_with = "number")]
    vg_size: u64,
    #[serde(deserialize_with = "number")]
    vg_free: u64,
    #[serde(deserialize_with = "number")]
    vg_extent_size: u64,
}

/// LVM's JSON: one report of one kind of rows.
#[derive(Deserialize)]
struct Reports<T> {
    report: Vec<T>,
}

#[derive(Deserialize)]
struct Volumes {
    lv: Vec<Row>,
}

#[derive(Deserialize)]
struct Groups {
    vg: Vec<GroupRow>,
}

/// LVM writes numbers as text.
fn number<'de, D: serde::Deserializer<'de>>(text: D) -> Result<u64, D::Error> {
    let text = String::deserialize(text)?;
    text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} is no number")))
}

impl Row {
    /// LVM's attributes: the second letter is `r` for read-only (`R` if only its table is).
    fn is_read_only(&self) -> bool {
        self.lv_attr.as_bytes().get(1) == Some(&b'r')
    }

    /// The sixth letter is `o` while a device is open.
    fn is_open(&self) -> bool {
        self.lv_attr.as_bytes().get(5) == Some(&b'o')
    }

    /// The eighth letter is `z` where blocks are zeroed before they are used.
    fn is_zeroed(&self) -> bool {
        self.lv_attr.as_bytes().get(7) == Some(&b'z')
    }

    fn is_thin_pool(&self) -> bool {
        self.lv_attr.starts_with('t')
    }

    /// Percent of the data that are in use, in hundredths; LVM writes `12.34`.
    fn data_hundredths(&self) -> u64 {
        let (whole, fraction) =
            self.data_percent.split_once('.').unwrap_or((&self.data_percent, ""));
        let whole: u64 = whole.parse().unwrap_or(0);
        let fraction: u64 = format!("{fraction:0<2.2}").parse().unwrap_or(0);
        (whole * 100 + fraction).min(10_000)
    }

    fn described(&self) -> Volume {
        let allocated = if self.pool_lv.is_empty() {
            self.lv_size
        } else {
            share(self.lv_size, self.data_hundredths())
        };
        Volume {
            name: self.lv_name.clone(),
            size: Bytes(self.lv_size),
            allocated: Bytes(allocated),
            path: PathBuf::from(&self.lv_path),
            is_snapshot: self.is_read_only(),
        }
    }
}

/// So many hundredths of a percent of `of`, rounded up.
fn share(of: u64, hundredths: u64) -> u64 {
    let part = (u128::from(of) * u128::from(hundredths)).div_ceil(10_000);
    u64::try_from(part).unwrap_or(u64::MAX)
}

impl<R: Runner> Group<R> {
    /// The volume group `group`, as LVM; with a thin pool in it, as LVM_THIN.
    ///
    /// # Errors
    /// If there is no such group or thin pool, or LVM can not be asked.
    pub fn open(run: R, group: Name, thin_pool: Option<Name>) -> Result<Group<R>, Error> {
        let pool = Group { run, group, thin_pool };
        pool.space()?;
        Ok(pool)
    }

    /// As an operator calls it.
    fn called(&self) -> String {
        match &self.thin_pool {
            Some(thin) => format!("thin pool {}/{thin}", self.group),
            None => format!("volume group {}", self.group),
        }
    }

    fn command(&self, what: String, argv: &[&str]) -> Result<String, Error> {
        self.run.run(argv).map_err(|error| {
            let why = match &error.why {
                Failure::Exit { stderr, .. } => reason(stderr),
                _ => Why::Failed,
            };
            let mut failed = Error::of_command(what, &error, PACKAGE);
            failed.why = why;
            if why == Why::NoSpace {
                failed = failed.correction(format!("free space in {}, or grow it", self.called()));
            }
            failed
        })
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, argv: &[&str]) -> Result<T, Error> {
        let text = self.command(format!("could not ask LVM for {}", self.called()), argv)?;
        let reports: Reports<T> = serde_json::from_str(&text).map_err(|error| {
            Error::new(
                Why::Failed,
                format!("LVM's answer to `{}` is not understood", argv.join(" ")),
            )
            .cause(error)
        })?;
        reports.report.into_iter().next().ok_or_else(|| self.gone())
    }

    fn gone(&self) -> Error {
        Error::new(Why::NotFound, format!("there is no {} on this node", self.called()))
            .correction("`vgs` and `lvs` show what there is")
    }

    fn group_row(&self) -> Result<GroupRow, Error> {
        let fields = "vg_size,vg_free,vg_extent_size";
        let mut argv = vec!["vgs"];
        argv.extend(REPORT);
        argv.extend([fields, self.group.as_str()]);
        let groups: Groups = self.ask(&argv)?;
        groups.vg.first().copied().ok_or_else(|| self.gone())
    }

    fn rows(&self) -> Result<Vec<Row>, Error> {
        let fields = "lv_name,lv_attr,lv_size,pool_lv,origin,data_percent,metadata_percent,lv_path";
        let mut argv = vec!["lvs"];
        argv.extend(REPORT);
        argv.extend([fields, self.group.as_str()]);
        Ok(self.ask::<Volumes>(&argv)?.lv)
    }

    /// Volumes of this pool: those of the thin pool, or those of the group that are of no pool.
    fn is_ours(&self, row: &Row) -> bool {
        match &self.thin_pool {
            Some(thin) => row.pool_lv == thin.as_str(),
            None => row.pool_lv.is_empty() && !row.is_thin_pool(),
        }
    }

    fn row(&self, name: &str) -> Result<Option<Row>, Error> {
        Ok(self.rows()?.into_iter().find(|row| row.lv_name == name))
    }

    /// The volume of that name, if there is one; anything else of that name is an error.
    fn volume(&self, name: &Name) -> Result<Option<Row>, Error> {
        match self.row(name.as_str())? {
            None => Ok(None),
            Some(row) if self.is_ours(&row) && !row.is_read_only() => Ok(Some(row)),
            Some(row) => Err(Error::taken(
                name,
                &self.called(),
                format!("`lvs` says {} {} of pool {:?}", row.lv_attr, row.lv_name, row.pool_lv),
            )),
        }
    }

    fn existing(&self, name: &Name) -> Result<Row, Error> {
        self.volume(name)?.ok_or_else(|| Error::absent(name, &self.called()))
    }

    fn snapshot_row(&self, volume: &Name, snapshot: &Name) -> Result<Option<Row>, Error> {
        match self.row(&copy(volume, snapshot))? {
            None => Ok(None),
            Some(row) if self.is_ours(&row) && row.is_read_only() => Ok(Some(row)),
            Some(row) => Err(Error::taken(
                snapshot,
                &self.called(),
                format!("`lvs` says {} {}", row.lv_attr, row.lv_name),
            )),
        }
    }

    /// `GROUP/NAME`, LVM's way to name a volume.
    fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.group)
    }

    /// A thin copy of `source` that can be written and is active.
    fn thin_copy(&self, source: &str, new: &str) -> Result<(), Error> {
        let argv = [
            "lvcreate",
            "--yes",
            "--snapshot",
            "--permission",
            "rw",
            "--setactivationskip",
            "n",
            "--activate",
            "y",
            "--ignoreactivationskip",
            "--name",
            new,
            &self.full(source),
        ];
        self.command(format!("could not copy {source} to {new} in {}", self.called()), &argv)?;
        Ok(())
    }

    fn needs_thin(&self, what: &str) -> Result<(), Error> {
        match self.thin_pool {
            Some(_) => Ok(()),
            None => Err(Error::new(Why::Unsupported, format!("{} can not {what}", self.called()))
                .cause("thick logical volumes have no snapshots")
                .correction("use a pool of kind LVM_THIN")),
        }
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        let argv = ["lvremove", "--yes", "--force", &self.full(name)];
        self.command(format!("could not remove {name} from {}", self.called()), &argv)?;
        Ok(())
    }
}

/// Options of every report.
const REPORT: [&str; 5] = ["--reportformat=json", "--units=b", "--nosuffix", "--all", "-o"];

/// The name of a snapshot's volume.
fn copy(volume: &Name, snapshot: &Name) -> String {
    format!("{volume}_{snapshot}")
}

/// While `volume` is rolled back, its new data have this name.
fn rolled_back(volume: &Name) -> String {
    format!("{volume}+rollback")
}

/// What LVM means, as far as its words tell; it has one exit status for everything.
fn reason(stderr: &str) -> Why {
    let says = |words: &str| stderr.contains(words);
    if says("insufficient free space") || says("insufficient suitable") || says("Insufficient free")
    {
        Why::NoSpace
    } else if says("not found") || says("Failed to find") {
        Why::NotFound
    } else if says("in use") || says("is used by") || says("contains a filesystem in use") {
        Why::InUse
    } else {
        Why::Failed
    }
}

impl<R: Runner> Provider for Group<R> {
    fn kind(&self) -> Kind {
        if self.thin_pool.is_some() { Kind::LvmThin } else { Kind::Lvm }
    }

    fn allocation_unit(&self) -> Result<Bytes, Error> {
        Ok(Bytes(self.group_row()?.vg_extent_size))
    }

    fn space(&self) -> Result<Space, Error> {
        let Some(thin) = &self.thin_pool else {
            let group = self.group_row()?;
            let (total, free) = (Bytes(group.vg_size), Bytes(group.vg_free));
            return Ok(Space { total, free, metadata_used: None });
        };
        let row = self.row(thin.as_str())?.filter(Row::is_thin_pool).ok_or_else(|| self.gone())?;
        let used = share(row.lv_size, row.data_hundredths());
        // A percentage that is cut off is as good as one more: alarms should not come late.
        let whole = row.metadata_percent.split('.').next().unwrap_or_default();
        let metadata_used =
            whole.parse::<u8>().ok().map(|percent| percent.saturating_add(1).min(100));
        let free = Bytes(row.lv_size.saturating_sub(used));
        Ok(Space { total: Bytes(row.lv_size), free, metadata_used })
    }

    /// A thin pool that does not zero its blocks gives whoever writes a part of one what somebody else had
    /// in the rest.
    fn starts_zeroed(&self, volume: &Name) -> Result<bool, Error> {
        Ok(self.thin_pool.is_some() && self.existing(volume)?.is_zeroed())
    }

    fn volumes(&self) -> Result<Vec<Volume>, Error> {
        // Names in brackets are LVM's own parts of other volumes.
        let hidden = |row: &Row| row.lv_name.starts_with('[');
        let rows = self.rows()?;
        let mut volumes: Vec<Volume> = rows
            .iter()
            .filter(|row| self.is_ours(row) && !hidden(row))
            .map(Row::described)
            .collect();
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    fn create(&self, name: &Name, size: Bytes) -> Result<Volume, Error> {
        let unit = self.allocation_unit()?;
        let size = rounded(size, unit)?;
        match self.volume(name)? {
            Some(row) if fits(Bytes(row.lv_size), size, unit) => return Ok(row.described()),
            Some(row) => {
                let cause = format!("it has {} bytes, {} are wanted", row.lv_size, size.0);
                return Err(Error::taken(name, &self.called(), cause));
            }
            None => {}
        }
        let bytes = format!("{}b", size.0);
        let mut argv = vec!["lvcreate", "--yes", "--wipesignatures", "y", "--name", name.as_str()];
        match &self.thin_pool {
            Some(thin) => argv.extend(["--virtualsize", &bytes, "--thinpool", thin.as_str()]),
            None => argv.extend(["--size", &bytes]),
        }
        argv.push(self.group.as_str());
        self.command(format!("could not create {name} in {}", self.called()), &argv)?;
        Ok(self.existing(name)?.described())
    }

    fn grow(&self, name: &Name, size: Bytes) -> Result<Volume, Error> {
        let size = rounded(size, self.allocation_unit()?)?;
        let row = self.existing(name)?;
        if row.lv_size >= size.0 {
            return Ok(row.described());
        }
        let bytes = format!("{}b", size.0);
        // lvextend never makes a volume smaller, whatever has happened since it was looked at.
        let argv = ["lvextend", "--yes", "--size", &bytes, &self.full(name.as_str())];
        self.command(format!("could not grow {name} in {}", self.called()), &argv)?;
        Ok(self.existing(name)?.described())
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        let interrupted = rolled_back(name);
        if self.row(&interrupted)?.is_some() {
            self.delete(&interrupted)?;
        }
        let Some(row) = self.volume(name)? else { return Ok(()) };
        if row.is_open() {
            return Err(Error::new(Why::InUse, format!("volume {name} is in use"))
                .cause(format!("{} is open", row.lv_path))
                .correction("detach or unmount it first"));
        }
        self.delete(name.as_str())
    }

    fn snapshot(&self, volume: &Name, snapshot: &Name) -> Result<Volume, Error> {
        self.needs_thin("make snapshots")?;
        if let Some(there) = self.snapshot_row(volume, snapshot)? {
            return Ok(there.described());
        }
        self.existing(volume)?;
        let new = copy(volume, snapshot);
        let argv = [
            "lvcreate",
            "--yes",
            "--snapshot",
            "--permission",
            "r",
            "--setactivationskip",
            "y",
            "--name",
            &new,
            &self.full(volume.as_str()),
        ];
        self.command(format!("could not make snapshot {snapshot} of {volume}"), &argv)?;
        let made = self.snapshot_row(volume, snapshot)?;
        made.map(|row| row.described())
            .ok_or_else(|| Error::no_snapshot(volume, snapshot, &self.called()))
    }

    fn remove_snapshot(&self, volume: &Name, snapshot: &Name) -> Result<(), Error> {
        match self.snapshot_row(volume, snapshot)? {
            Some(row) => self.delete(&row.lv_name),
            None => Ok(()),
        }
    }

    fn restore(&self, volume: &Name, snapshot: &Name, new: &Name) -> Result<Volume, Error> {
        self.needs_thin("restore snapshots")?;
        let source = self
            .snapshot_row(volume, snapshot)?
            .ok_or_else(|| Error::no_snapshot(volume, snapshot, &self.called()))?;
        match self.volume(new)? {
            None => self.thin_copy(&source.lv_name, new.as_str())?,
            // LVM remembers what a thin volume was made from, however often it was written since.
            Some(row) if row.origin == source.lv_name => {}
            Some(_) => {
                let cause = format!("it is no copy of {}", source.lv_name);
                return Err(Error::taken(new, &self.called(), cause));
            }
        }
        Ok(self.existing(new)?.described())
    }

    /// A volume can not be exchanged in one step here: its new data are made beside it under
    /// another name first. Who finds them without the volume goes on from there.
    fn rollback(&self, volume: &Name, snapshot: &Name) -> Result<Volume, Error> {
        self.needs_thin("roll back")?;
        let source = self
            .snapshot_row(volume, snapshot)?
            .ok_or_else(|| Error::no_snapshot(volume, snapshot, &self.called()))?;
        let new = rolled_back(volume);
        let made = self.row(&new)?;
        match self.volume(volume)? {
            Some(row) if row.is_open() => {
                return Err(Error::new(Why::InUse, format!("volume {volume} is in use"))
                    .cause(format!("{} is open", row.lv_path))
                    .correction("detach or unmount it first"));
            }
            Some(_) => {
                // Left by a rollback that was interrupted, perhaps to another snapshot.
                if made.is_some() {
                    self.delete(&new)?;
                }
                self.thin_copy(&source.lv_name, &new)?;
                self.delete(volume.as_str())?;
            }
            None => match made {
                Some(row) if row.origin == source.lv_name => {}
                Some(_) => {
                    self.delete(&new)?;
                    self.thin_copy(&source.lv_name, &new)?;
                }
                None => return Err(Error::absent(volume, &self.called())),
            },
        }
        let argv = ["lvrename", self.group.as_str(), &new, volume.as_str()];
        self.command(format!("could not give {volume} its new data"), &argv)?;
        Ok(self.existing(volume)?.described())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(attributes: &str, data: &str) -> Row {
        Row {
            lv_name: "x".into(),
            lv_attr: attributes.into(),
            lv_size: 1000,
            pool_lv: "thin".into(),
            origin: String::new(),
            data_percent: data.into(),
            metadata_percent: String::new(),
            lv_path: "/dev/vg/x".into(),
        }
    }

    #[test]
    fn percentages_are_counted_up_never_down() {
        for (text, hundredths, allocated) in [
            ("0.00", 0, 0),
            ("12.34", 1234, 124),
            ("100.00", 10_000, 1000),
            ("", 0, 0),
            ("7", 700, 70),
        ] {
            let row = row("Vwi-a-tz--", text);
            assert_eq!(row.data_hundredths(), hundredths, "{text:?}");
            assert_eq!(row.described().allocated, Bytes(allocated), "{text:?}");
        }
    }

    #[test]
    fn attributes_tell_snapshots_and_open_volumes() {
        assert!(!row("Vwi-a-tz--", "").is_read_only());
        assert!(row("Vri---tz-k", "").is_read_only());
        assert!(row("Vwi-aotz--", "").is_open());
        assert!(!row("Vwi-a-tz--", "").is_open());
        assert!(row("Vwi-a-tz--", "").is_zeroed());
        assert!(!row("Vwi-a-t---", "").is_zeroed(), "of a thin pool made with --zero n");
        assert!(row("twi-aotz--", "").is_thin_pool());
        assert!(!row("", "").is_read_only());
    }
}
