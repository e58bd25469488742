//! The tables on the terminal.

use super::bed::Program;
use super::history::Before;
use super::results::{Latency, OfSystem, Results, Run};
use super::statistics::{Verdict, judge};

/// How a difference is judged; said wherever one is marked.
const JUDGED: &str = "\
A mark (*) is on what is beyond noise: the medians are 2 % apart or more, and by the rank test of
Mann and Whitney chance alone separates the runs as well as here in less than 1 of 100 cases. With
five runs on each side that is so if all of one side are above all of the other. Of a hundred marks
that could be, one is there by chance.";

/// Characters of a line of the notes.
const WIDTH: usize = 96;

/// Everything that was measured.
pub fn print(results: &Results) {
    let Results { machine, tree, settings, .. } = results;
    println!();
    if results.quick {
        println!("A SMOKE RUN: it shows that the rows work. None of its figures is one.");
    }
    let changed = if tree.dirty { ", changed" } else { "" };
    println!("{}, commit {}{changed}", results.time, tree.commit);
    println!(
        "{}: {} x {}, {} MiB, Linux {}, {}",
        machine.host, machine.cores, machine.cpu, machine.memory_mib, machine.kernel, machine.fio
    );
    println!(
        "volumes of {} MiB, fully written; medians of runs of {} s",
        settings.mib, settings.seconds
    );
    for system in &results.systems {
        for line in wrapped(&format!("{}: {}", system.name, system.note)) {
            println!("    {line}");
        }
    }
    let width = results.systems.iter().map(|system| system.name.len()).max().unwrap_or(0);
    for set in &results.sets {
        println!("\ndisks {} ({})", set.disks, set.file_system);
        println!(
            "    {:width$} {:>9} {:>8} {:>11} {:>11} {:>11} {:>8} {:>8} {:>6} {:>6}",
            "", "", "", "p50", "p99", "p99.9", "CPU us", "CPU us", "of", ""
        );
        println!(
            "    {:width$} {:>9} {:>8} {:>11} {:>11} {:>11} {:>8} {:>8} {:>6} {:>6}",
            "", "IOPS", "MiB/s", "us", "us", "us", "servers", "client", "raw", "spread"
        );
        for row in &set.rows {
            println!("{}: {}", row.row, row.title);
            for system in &row.systems {
                println!("    {}", line(system, width));
            }
        }
    }
    println!(
        "\nOf two latencies the first is of reads. CPU time is per request; that of the servers is\n\
         of all their processes together. Spread: from the least to the most IOPS of all runs, as\n\
         a part of the median."
    );
}

/// Lines that fit; all but the first are indented.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one from the beginning");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("    {word}"));
        } else {
            last.push_str(if last.is_empty() { "" } else { " " });
            last.push_str(word);
        }
    }
    lines
}

fn line(system: &OfSystem, width: usize) -> String {
    let run = &system.median;
    let server = run.server_cpu_us.map_or("-".to_owned(), |us| format!("{us:.1}"));
    format!(
        "{:width$} {:>9.0} {:>8.1} {:>11} {:>11} {:>11} {server:>8} {:>8.1} {:>6} {:>6}",
        system.system,
        run.iops,
        run.mib_per_second,
        latency(run, |latency| latency.p50_us),
        latency(run, |latency| latency.p99_us),
        latency(run, |latency| latency.p999_us),
        run.client_cpu_us,
        percent(system.of_raw),
        percent(system.spread)
    )
}

/// One number, or that of reads and that of writes.
fn latency(run: &Run, figure: impl Fn(&Latency) -> f64) -> String {
    let sides: Vec<String> = [run.read, run.write]
        .iter()
        .flatten()
        .map(|side| match figure(side) {
            us if us < 100.0 => format!("{us:.1}"),
            us => format!("{us:.0}"),
        })
        .collect();
    sides.join("/")
}

/// Two revisions, row by row.
pub fn compare(results: &Results, new: &Program, old: &Program) {
    println!("\n{} (this tree) by {}: 1.00 is no difference", new.name, old.name);
    println!("    {:34} {:>6}   {:>13} {:>6}", "", "IOPS", "spreads", "CPU us");
    let mut verdicts = Vec::new();
    for set in &results.sets {
        for row in &set.rows {
            for end in ["", "-diskless"] {
                let of = |program: &Program| {
                    let name = format!("{}{end}", program.name);
                    row.systems.iter().find(|system| system.system == name)
                };
                let (Some(new), Some(old)) = (of(new), of(old)) else { continue };
                let iops = judge(&new.iops(), &old.iops());
                let cpu = judge(&new.server_cpu(), &old.server_cpu());
                verdicts.extend([iops, cpu]);
                println!(
                    "    {:34} {:>8} {:>13} {:>8}",
                    format!("{} {}{end}", set.disks, row.row),
                    verdict(iops),
                    format!("{} {}", percent(new.spread), percent(old.spread)),
                    verdict(cpu)
                );
            }
        }
    }
    println!("Spreads are those of IOPS, of this tree and of {}.", old.name);
    println!("{}", how_judged(&verdicts));
}

/// The last measurement like this one.
pub fn history(before: &Option<Before>) {
    let Some(before) = before else {
        println!("\nThe history has no measurement with these settings on this machine yet.");
        return;
    };
    println!("\nagainst the measurement of {}, commit {}:", before.time, before.commit);
    let beyond = |verdict: &Option<Verdict>| verdict.is_some_and(|v| v.beyond_noise == Some(true));
    let changes = &before.changes;
    let marked: Vec<_> =
        changes.iter().filter(|c| beyond(&c.iops) || beyond(&c.server_cpu)).collect();
    let verdicts: Vec<_> = changes.iter().flat_map(|c| [c.iops, c.server_cpu]).collect();
    if marked.is_empty() && can_tell(&verdicts) {
        println!("    nothing is beyond noise in {} rows of systems", changes.len());
    }
    for change in marked {
        let (iops, cpu) = (verdict(change.iops), verdict(change.server_cpu));
        println!("    {:40} IOPS {iops:>8}   CPU us {cpu:>8}", change.of);
    }
    println!("{}", how_judged(&verdicts));
    println!("The machine may have had other things to do then: --compare REV runs both together.");
}

fn how_judged(verdicts: &[Option<Verdict>]) -> &'static str {
    match can_tell(verdicts) {
        true => JUDGED,
        false => "Nothing can be marked: it takes 5 rounds to tell a difference from noise.",
    }
}

/// True if there were enough runs of anything.
fn can_tell(verdicts: &[Option<Verdict>]) -> bool {
    verdicts.iter().flatten().any(|verdict| verdict.beyond_noise.is_some())
}

/// A ratio with its mark.
fn verdict(verdict: Option<Verdict>) -> String {
    match verdict {
        None => "-".to_owned(),
        Some(Verdict { ratio, beyond_noise }) => {
            let mark = if beyond_noise == Some(true) { " *" } else { "  " };
            format!("{ratio:.2}{mark}")
        }
    }
}

fn percent(part: Option<f64>) -> String {
    part.map_or("-".to_owned(), |part| match part * 100.0 {
        // What is a hundred times slower is not nothing.
        small if small > 0.0 && small < 0.95 => format!("{small:.1} %"),
        percent => format!("{percent:.0} %"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn only_what_is_beyond_noise_has_a_mark() {
        assert_eq!(verdict(None), "-");
        assert_eq!(verdict(Some(Verdict { ratio: 0.5, beyond_noise: None })), "0.50  ");
        assert_eq!(verdict(Some(Verdict { ratio: 0.5, beyond_noise: Some(false) })), "0.50  ");
        assert_eq!(verdict(Some(Verdict { ratio: 1.5, beyond_noise: Some(true) })), "1.50 *");
    }

    #[test]
    fn small_parts_are_not_rounded_to_nothing() {
        let parts = [None, Some(0.0), Some(0.002), Some(0.0096), Some(0.5)].map(percent);
        assert_eq!(parts, ["-", "0 %", "0.2 %", "1 %", "50 %"]);
    }

    #[test]
    fn long_notes_are_wrapped_between_words() {
        let lines = wrapped(&"word ".repeat(40));
        assert_eq!(lines.iter().flat_map(|line| line.split_whitespace()).count(), 40);
        assert!(lines.iter().all(|line| line.len() <= WIDTH) && lines[1].starts_with("    word"));
        assert_eq!(wrapped("raw: short"), ["raw: short"]);
    }

    #[test]
    fn a_line_has_every_figure_in_its_column() {
        let results = results(&[1_000.0, 1_100.0]);
        let line = line(&results.sets[0].rows[0].systems[1], 8);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            ["ashlar", "1050", "4.1", "10.0", "20.0", "30.0", "25.0", "5.0", "50", "%", "10", "%"]
        );
    }
}
