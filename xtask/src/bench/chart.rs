//! The chart: for each row a bar per system, requests per second on the left and CPU time on the
//! right. Plain SVG, which any browser shows.
//!
//! Systems differ by a factor of a hundred and rows by a thousand, so both scales are logarithmic
//! and the same for all rows: bars can be compared from row to row, their lengths mean factors.
//! Colours say what kind of system it is; they differ in lightness too, for those who print.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::results::{Measured, OfSystem, Results, Run, Set};
use super::{report, results};

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 16.0;
const LINE: f64 = 18.0;
/// Between the end of a bar and its figure.
const GAP: f64 = 6.0;
/// Where the columns begin, and how long the longest bar may be.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 580.0;
const LONGEST: f64 = 310.0;

const STYLE: &str = "\
text{fill:#222;font:13px 'DejaVu Sans',Verdana,sans-serif}\
.h{font-size:17px;font-weight:bold}\
.b{font-weight:bold}\
.s{font-size:11px;fill:#666}\
.e{text-anchor:end}\
.m{text-anchor:middle}\
line{stroke:#ddd}\
.w{stroke:#222}";

/// What a system is, for the eye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ours,
    /// Another revision of it.
    Old,
    Replicated,
    OneCopy,
}

const KINDS: &[Kind] = &[Kind::Ours, Kind::Old, Kind::Replicated, Kind::OneCopy];

impl Kind {
    fn of(system: &str, results: &Results) -> Kind {
        let copies = results.systems.iter().find(|note| note.name == system);
        match copies.map_or(1, |note| note.copies) {
            _ if system.starts_with("ashlar@") => Kind::Old,
            _ if system.starts_with("ashlar") => Kind::Ours,
            0 | 1 => Kind::OneCopy,
            _ => Kind::Replicated,
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Kind::Ours => "#12508c",
            Kind::Old => "#86b6e0",
            Kind::Replicated => "#e08a2e",
            Kind::OneCopy => "#bdbdbd",
        }
    }

    fn legend(self) -> &'static str {
        match self {
            Kind::Ours => "Ashlar, three copies",
            Kind::Old => "the other revision",
            Kind::Replicated => "others with three copies",
            Kind::OneCopy => "one copy, no replication",
        }
    }
}

/// A logarithmic scale.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    /// One for all of the figures: the least has a bar that can be seen, the most is the longest.
    /// `None` if there is nothing to show.
    fn of(figures: impl Iterator<Item = f64>) -> Option<Scale> {
        let figures = figures.filter(|figure| figure.is_finite() && *figure > 0.0);
        let (least, most) = figures
            .fold((f64::MAX, 0.0), |(least, most), figure| (figure.min(least), figure.max(most)));
        (most > 0.0).then_some(Scale { least: least / 2.0, most })
    }

    /// How far from the left.
    fn place(self, figure: f64) -> f64 {
        let part = (figure / self.least).ln() / (self.most / self.least).ln();
        part.clamp(0.0, 1.0) * LONGEST
    }

    /// Powers of ten on it.
    fn decades(self) -> impl Iterator<Item = f64> {
        let exponents = self.least.log10().ceil() as i32..=self.most.log10().floor() as i32;
        exponents.map(|exponent| 10f64.powi(exponent))
    }
}

/// One of the two columns.
struct Column {
    x: f64,
    title: &'static str,
    scale: Option<Scale>,
    figure: fn(&Run) -> f64,
}

impl Column {
    fn all(set: &Set) -> [Column; 2] {
        let column = |x, title, figure: fn(&Run) -> f64| {
            let systems = set.rows.iter().flat_map(|row| &row.systems);
            let runs = systems.flat_map(|system| system.runs.iter().chain([&system.median]));
            Column { x, title, scale: Scale::of(runs.map(figure)), figure }
        };
        [
            column(LEFT, "requests per second", |run| run.iops),
            column(RIGHT, "CPU us per request, servers and client", |run| {
                run.server_cpu_us.unwrap_or(0.0) + run.client_cpu_us
            }),
        ]
    }

    /// The bar of a system, a line from its least to its greatest run, and its figure.
    fn draw(&self, body: &mut String, system: &OfSystem, colour: &str, y: f64) {
        let figure = (self.figure)(&system.median);
        let Some(scale) = self.scale.filter(|_| figure > 0.0) else { return };
        let (x, length) = (self.x, scale.place(figure));
        let top = y - 11.0;
        let _ = writeln!(
            body,
            r#"<rect x="{x}" y="{top}" width="{length:.1}" height="13" fill="{colour}"/>"#
        );
        let ends = system.runs.iter().map(|run| x + scale.place((self.figure)(run)));
        let (from, to) =
            ends.fold((f64::MAX, 0.0f64), |(from, to), end| (from.min(end), to.max(end)));
        if to - from >= 1.0 {
            let middle = y - 4.5;
            let _ = writeln!(
                body,
                r#"<line class="w" x1="{from:.1}" x2="{to:.1}" y1="{middle}" y2="{middle}"/>"#
            );
        }
        text(body, to.max(x + length) + GAP, y, "", &grouped(figure));
    }

    /// Powers of ten, from the heading to the last row.
    fn draw_grid(&self, body: &mut String, top: f64, bottom: f64) {
        for decade in self.scale.into_iter().flat_map(Scale::decades) {
            let x = self.x + self.scale.map_or(0.0, |scale| scale.place(decade));
            let _ =
                writeln!(body, r#"<line x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#);
            text(body, x, top - 3.0, "s m", &grouped(decade));
        }
    }
}

/// Prints and draws what was measured and kept before, in one run or in several that are alike.
pub fn again(arguments: &[String]) -> Result<()> {
    let (mut files, mut svg_file) = (Vec::new(), None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--svg" => svg_file = Some(arguments.next().context("--svg needs a file")?),
            option if option.starts_with('-') => {
                bail!("{option:?} is not understood; cargo xtask bench --help")
            }
            file => files.push(PathBuf::from(file)),
        }
    }
    let path = svg_file.context("say where the chart goes: --svg FILE")?;
    let results = Results::read(&files)?;
    results::write(Path::new(path), &svg(&results))?;
    report::print(&results);
    println!("chart: {path}");
    Ok(())
}

/// Draws it.
pub fn svg(results: &Results) -> String {
    let mut body = String::new();
    let mut y = 30.0;
    let machine = &results.machine;
    let smoke = if results.quick { "SMOKE RUN, no figures: " } else { "" };
    text(&mut body, MARGIN, y, "h", &format!("{smoke}Block storage, side by side on one machine"));
    let settings = &results.settings;
    let place = [
        format!("{} x {}, Linux {}, {}", machine.cores, machine.cpu, machine.kernel, machine.fio),
        format!(
            "commit {}, {}; medians of runs of {} s on volumes of {} MiB, thin lines from the \
             least to the greatest run; logarithmic scales",
            results.tree.short(),
            results.time,
            settings.seconds,
            settings.mib
        ),
    ];
    for line in place {
        y += LINE;
        text(&mut body, MARGIN, y, "s", &line);
    }
    y += 1.5 * LINE;
    draw_legend(&mut body, results, y);
    for set in &results.sets {
        y = draw_set(&mut body, results, set, y + 2.0 * LINE);
    }
    let height = y + LINE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<style>{STYLE}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn draw_legend(body: &mut String, results: &Results, y: f64) {
    let systems = results.sets.iter().flat_map(|set| &set.rows).flat_map(|row| &row.systems);
    let there: Vec<Kind> = systems.map(|system| Kind::of(&system.system, results)).collect();
    let mut x = MARGIN;
    for kind in KINDS.iter().filter(|kind| there.contains(kind)) {
        let (top, colour) = (y - 11.0, kind.colour());
        let _ =
            writeln!(body, r#"<rect x="{x}" y="{top}" width="13" height="13" fill="{colour}"/>"#);
        text(body, x + 13.0 + GAP, y, "", kind.legend());
        x += 200.0;
    }
}

fn draw_set(body: &mut String, results: &Results, set: &Set, mut y: f64) -> f64 {
    let kind = if set.disks == "ram" { "in memory" } else { "on a disk" };
    text(body, MARGIN, y, "b", &format!("Files {kind} ({})", set.file_system));
    y += 1.3 * LINE;
    let columns = Column::all(set);
    let top = y + 1.4 * LINE;
    let bottom = set.rows.iter().fold(top, |bottom, row| bottom + height(row));
    for column in &columns {
        text(body, column.x, y, "b", column.title);
        column.draw_grid(body, top, bottom);
    }
    y = top;
    for row in &set.rows {
        draw_row(body, results, &columns, row, y);
        y += height(row);
    }
    y
}

/// A title, the systems, and a gap.
fn height(row: &Measured) -> f64 {
    (row.systems.len() as f64 + 1.7) * LINE
}

fn draw_row(body: &mut String, results: &Results, columns: &[Column], row: &Measured, mut y: f64) {
    y += 1.2 * LINE;
    // White behind it: the lines of the scale run through.
    let (top, width) = (y - 0.75 * LINE, WIDTH - 2.0 * MARGIN);
    let _ = writeln!(
        body,
        r##"<rect x="{MARGIN}" y="{top:.1}" width="{width}" height="{LINE}" fill="#f2f2f2"/>"##
    );
    text(body, MARGIN + GAP, y, "b", &row.title);
    text(body, WIDTH - MARGIN - GAP, y, "s e", &row.row);
    for system in &row.systems {
        y += LINE;
        text(body, LEFT - GAP, y, "e", &system.system);
        let colour = Kind::of(&system.system, results).colour();
        columns.iter().for_each(|column| column.draw(body, system, colour, y));
    }
}

/// As people read it: 12,345; 123; 12.3; 0.12.
fn grouped(figure: f64) -> String {
    match figure {
        small if small < 0.995 => format!("{small:.2}"),
        small if small.fract() == 0.0 && small < 1e3 => format!("{small}"),
        small if small < 99.95 => format!("{small:.1}"),
        _ => {
            let digits = format!("{figure:.0}");
            let mut text = String::new();
            for (index, digit) in digits.chars().enumerate() {
                if index > 0 && (digits.len() - index).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
    }
}

fn text(body: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let class = if class.is_empty() { String::new() } else { format!(r#" class="{class}""#) };
    let _ = writeln!(body, r#"<text x="{x:.1}" y="{y:.1}"{class}>{content}</text>"#);
}

#[cfg(test)]
mod tests {
    use super::super::results::SystemNote;
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_the_logarithm() {
        let scale = Scale::of([400.0, 200.0, 0.0, f64::NAN, 1_600.0].into_iter()).unwrap();
        assert_eq!(scale, Scale { least: 100.0, most: 1_600.0 });
        assert_eq!((scale.place(1_600.0), scale.place(400.0)), (LONGEST, LONGEST / 2.0));
        assert_eq!((scale.place(100.0), scale.place(0.0)), (0.0, 0.0));
        assert_eq!(scale.decades().collect::<Vec<_>>(), [100.0, 1_000.0]);
        assert_eq!(Scale::of([0.0].into_iter()), None);
    }

    #[test]
    fn every_system_has_its_bar_in_the_colour_of_its_kind() {
        let mut results = results(&[1_000.0, 1_500.0]);
        let chart = svg(&results);
        // 2,500 and 1,250 where the runs are from 1,000 to 3,000.
        assert!(chart.contains(&format!("width=\"{:.1}\" height=\"13\" fill=\"#bdbdbd\"", 278.5)));
        assert!(chart.contains(&format!("width=\"{:.1}\" height=\"13\" fill=\"#12508c\"", 158.5)));
        assert!(chart.contains(">2,500<") && chart.contains("class=\"w\""), "{chart}");
        assert!(chart.starts_with("<svg") && chart.ends_with("</svg>\n"));
        assert!(chart.contains("&lt;fast&gt; CPU"), "{chart}");
        assert!(!chart.contains("others with three copies"));
        let note =
            |name: &str| SystemNote { name: name.to_owned(), copies: 3, note: String::new() };
        results.systems.push(note("raw"));
        assert!(svg(&results).contains("others with three copies"));
    }

    #[test]
    fn figures_are_as_people_read_them() {
        for (figure, words) in [
            (1_234_567.4, "1,234,567"),
            (999.6, "1,000"),
            (123.4, "123"),
            (12.34, "12.3"),
            (10.0, "10"),
            (0.125, "0.12"),
        ] {
            assert_eq!(grouped(figure), words);
        }
    }
}
