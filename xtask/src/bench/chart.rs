//! The chart: for each row a bar per system, IOPS on the left and CPU time on the right. Plain SVG,
//! which any browser shows.

use std::fmt::Write as _;

use super::results::{Measured, OfSystem, Results, Set};

const WIDTH: f64 = 960.0;
/// Where bars of a column begin, and how long the longest is.
const COLUMNS: [f64; 2] = [170.0, 600.0];
const LONGEST: f64 = 290.0;
const LINE: f64 = 16.0;
const COLOURS: &[&str] =
    &["#7f7f7f", "#1f5fa8", "#63a0dc", "#c2621b", "#2e8b57", "#8659a8", "#b8a02e"];

/// Draws it.
pub fn svg(results: &Results) -> String {
    let mut body = String::new();
    let mut y = 24.0;
    let machine = &results.machine;
    let smoke = if results.quick { "SMOKE RUN, no figures: " } else { "" };
    text(&mut body, 10.0, y, "bold", &format!("{smoke}IOPS, and CPU time of the servers"));
    y += LINE;
    let place = format!(
        "{}, commit {}; {} x {}, Linux {}; medians of runs of {} s",
        results.time,
        results.tree.short(),
        machine.cores,
        machine.cpu,
        machine.kernel,
        results.settings.seconds
    );
    text(&mut body, 10.0, y, "normal", &place);
    for set in &results.sets {
        y = draw_set(&mut body, set, y + 2.0 * LINE);
    }
    let height = y + LINE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn draw_set(body: &mut String, set: &Set, mut y: f64) -> f64 {
    let title = format!("disks: {} ({})", set.disks, set.file_system);
    text(body, 10.0, y, "bold", &title);
    text(body, COLUMNS[0], y, "bold", "IOPS");
    text(body, COLUMNS[1], y, "bold", "CPU us per request, servers");
    for row in &set.rows {
        y = draw_row(body, row, y + 1.5 * LINE);
    }
    y
}

/// Every row has a scale of its own: they differ by a factor of a thousand.
fn draw_row(body: &mut String, row: &Measured, mut y: f64) -> f64 {
    text(body, 10.0, y, "bold", &format!("{}: {}", row.row, row.title));
    let most =
        |figure: &dyn Fn(&OfSystem) -> f64| row.systems.iter().map(figure).fold(0.0, f64::max);
    let most_iops = most(&|system| system.median.iops);
    let most_cpu = most(&|system| system.median.server_cpu_us.unwrap_or(0.0));
    for (system, colour) in row.systems.iter().zip(COLOURS.iter().cycle()) {
        y += LINE;
        text(body, 22.0, y, "normal", &system.system);
        let iops = system.median.iops;
        bar(body, COLUMNS[0], y, iops / most_iops, colour, &format!("{iops:.0}"));
        if let Some(cpu) = system.median.server_cpu_us {
            bar(body, COLUMNS[1], y, cpu / most_cpu, colour, &format!("{cpu:.1}"));
        }
    }
    y
}

fn bar(body: &mut String, x: f64, y: f64, part: f64, colour: &str, label: &str) {
    // Nothing by nothing is nothing.
    let length = if part.is_finite() { part * LONGEST } else { 0.0 };
    let top = y - 10.0;
    let _ = writeln!(
        body,
        "<rect x=\"{x}\" y=\"{top}\" width=\"{length:.1}\" height=\"12\" fill=\"{colour}\"/>"
    );
    text(body, x + length + 5.0, y, "normal", label);
}

fn text(body: &mut String, x: f64, y: f64, weight: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ =
        writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" font-weight=\"{weight}\">{content}</text>");
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn the_longest_bar_is_as_long_as_there_is_room_for() {
        let chart = svg(&results(&[1_000.0]));
        assert!(chart.contains("width=\"290.0\" height=\"12\" fill=\"#7f7f7f\""), "{chart}");
        assert!(chart.contains("width=\"145.0\" height=\"12\" fill=\"#1f5fa8\""));
        assert!(chart.starts_with("<svg") && chart.ends_with("</svg>\n"));
        assert!(chart.contains("&lt;fast&gt; CPU"), "{chart}");
    }
}
