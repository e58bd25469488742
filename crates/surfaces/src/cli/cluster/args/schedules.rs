//! Commands about schedules, and where they are switched on.

use clap::{Args, Subcommand, ValueEnum};

/// Commands about schedules. Times are UTC, and as crontabs have them: minute, hour, day of the month, month,
/// day of the week; `0 2 * * sun` is Sundays at 02:00.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum ScheduleCommand {
    /// List schedules
    List,
    /// Make a schedule; nothing is backed up before `backup schedule enable` says what
    Create {
        /// Name of the schedule
        name: String,
        /// When full backups are made
        #[arg(long, value_name = "CRON")]
        full: String,
        /// When incremental ones are made [default: never]
        #[arg(long, value_name = "CRON")]
        incremental: Option<String>,
        /// How many full backups, with what builds on them, keep their snapshots here [default: all]
        #[arg(long, value_name = "COUNT", value_parser = kept)]
        keep_local: Option<Kept>,
        /// How many full backups, with what builds on them, stay in the remote [default: all]
        #[arg(long, value_name = "COUNT", value_parser = kept)]
        keep_remote: Option<Kept>,
        /// What is done about one that could not be made
        #[arg(long, value_name = "WHAT", default_value = "skip")]
        on_failure: OnFailure,
        /// How often it is tried again, once a minute [default: until it succeeds]
        #[arg(long, value_name = "COUNT", value_parser = kept)]
        max_retries: Option<Kept>,
    },
    /// Change a schedule; what is not given stays, and new times count from now on
    Modify {
        /// The schedule
        name: String,
        /// When full backups are made
        #[arg(long, value_name = "CRON")]
        full: Option<String>,
        /// When incremental ones are made, or `never`
        #[arg(long, value_name = "CRON")]
        incremental: Option<String>,
        /// How many full backups, with what builds on them, keep their snapshots here, or `all`
        #[arg(long, value_name = "COUNT", value_parser = kept)]
        keep_local: Option<Kept>,
        /// How many full backups, with what builds on them, stay in the remote, or `all`
        #[arg(long, value_name = "COUNT", value_parser = kept)]
        keep_remote: Option<Kept>,
        /// What is done about one that could not be made
        #[arg(long, value_name = "WHAT")]
        on_failure: Option<OnFailure>,
        /// How often it is tried again, once a minute, or `forever`
        #[arg(long, value_name = "COUNT", value_parser = kept)]
        max_retries: Option<Kept>,
    },
    /// Delete a schedule wherever it is enabled; backups and snapshots stay
    Delete {
        /// The schedule
        name: String,
    },
}

/// What is done about a backup that could not be made.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum OnFailure {
    /// The next one is made at its time
    Skip,
    /// It is tried again
    Retry,
}

/// A number, or no bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept(pub Option<u32>);

fn kept(text: &str) -> Result<Kept, String> {
    match text {
        "all" | "forever" => Ok(Kept(None)),
        number => number
            .parse()
            .map(|number| Kept(Some(number)))
            .map_err(|_| "it is a number, or `all`".to_owned()),
    }
}

/// Commands about where schedules are enabled. What is said of a volume counts before what is said of its
/// resource group, and that before what is said of all volumes.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub enum SwitchCommand {
    /// List volumes with the schedules by which they are backed up, and what becomes of it
    List {
        /// Only of these volumes
        #[arg(value_name = "VOLUME")]
        names: Vec<String>,
        /// Only with this remote
        #[arg(long)]
        remote: Option<String>,
        /// Only by this schedule
        #[arg(long)]
        schedule: Option<String>,
    },
    /// Have backups made by a schedule, from now on
    Enable {
        /// The remote that they go to
        remote: String,
        /// The schedule
        schedule: String,
        #[command(flatten)]
        of: Of,
        /// The node that uploads them, if it can
        #[arg(long, value_name = "NODE")]
        on: Option<String>,
    },
    /// Have none made, whatever is said of the resource group or of all volumes
    Disable {
        /// The remote
        remote: String,
        /// The schedule
        schedule: String,
        #[command(flatten)]
        of: Of,
    },
    /// Take back what was enabled or disabled
    Delete {
        /// The remote
        remote: String,
        /// The schedule
        schedule: String,
        #[command(flatten)]
        of: Of,
    },
}

/// Of what.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
#[allow(missing_docs, reason = "the comments are help texts")]
pub struct Of {
    /// Of a volume
    #[arg(value_name = "VOLUME")]
    pub name: Option<String>,
    /// Of every volume of a resource group
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Of every volume
    #[arg(long)]
    pub all: bool,
}
