//! Osier beside its peers, as bars: figures of the table in `docs/performance.md`.

use crate::steps::Result;
use std::fmt::Write as _;

/// The libraries, as the table has them, and their colours.
const LIBRARIES: [(&str, &str, &str); 4] = [
    ("osier", "Osier", "#1b7837"),
    ("openmpi", "Open MPI", "#7b8cbf"),
    ("mpich", "MPICH", "#bf9a5a"),
    ("intelmpi", "Intel MPI", "#a6a6a6"),
];

/// Rows of the table: bench, memory, bytes and unit; what the picture calls them.
const ROWS: [(&str, &str, &str, &str, &str); 6] = [
    ("latency", "plain", "8", "us", "latency, 8 B"),
    ("latency", "plain", "65536", "us", "latency, 64 KiB"),
    ("latency", "plain", "4194304", "us", "latency, 4 MiB"),
    (
        "latency",
        "plain-rotated",
        "65536",
        "us",
        "latency, 64 KiB, out of the cache",
    ),
    (
        "message-rate",
        "plain",
        "8",
        "msg/s",
        "time of a message, 8 B, window 64",
    ),
    ("launch", "plain", "0", "ms", "launch of an empty program"),
];

const BAR: usize = 13;
const GROUP: usize = 4 * BAR + 30;
const LEFT: usize = 20;
const FULL: f64 = 560.0;

/// The picture of a page with the table.
pub fn of(page: &str) -> Result<String> {
    let table = page
        .split_once("<!-- compare:begin -->")
        .and_then(|(_, rest)| rest.split_once("<!-- compare:end -->"));
    let (table, _) = table.ok_or("docs/performance.md has no table of the comparison")?;
    let mut lines = table.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let names = lines.next().map(cells).unwrap_or_default();
    let rows: Vec<Vec<String>> = lines.skip(1).map(cells).collect();
    let column = |name: &str| {
        let at = names.iter().position(|known| known == name);
        at.ok_or_else(|| format!("the table has no column {name}"))
    };
    let source = table.lines().find(|line| line.starts_with("Medians"));
    let source = source.ok_or("the table has no line about its source")?;

    let height = 60 + ROWS.len() * GROUP + 40;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 820 {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">Time beside the peers, two ranks on one machine; shorter is better, each group on its own scale</text>\n"
    );
    let mut at = LEFT;
    for (_, name, colour) in LIBRARIES {
        let _ = writeln!(
            svg,
            "<rect x=\"{at}\" y=\"36\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"46\">{name}</text>",
            at + 17
        );
        at += 110;
    }
    for (group, (bench, memory, bytes, unit, title)) in ROWS.iter().enumerate() {
        let wanted = [
            ("bench", *bench),
            ("layout", "contiguous"),
            ("memory", *memory),
            ("bytes", *bytes),
            ("unit", *unit),
        ];
        let mut row = None;
        for cells in &rows {
            let mut fits = true;
            for (name, value) in wanted {
                fits &= cells.get(column(name)?).is_some_and(|cell| cell == value);
            }
            if fits {
                row = Some(cells);
            }
        }
        let row = row.ok_or_else(|| format!("the table has no row {title}"))?;
        let mut values = Vec::new();
        for (name, ..) in LIBRARIES {
            let cell = &row[column(name)?];
            let value: f64 = cell.parse().map_err(|_| format!("{title}: {cell:?}"))?;
            // A rate as the time of one message.
            values.push(match *unit {
                "msg/s" => (1e9 / value, "ns"),
                unit => (value, unit),
            });
        }
        let most = values.iter().map(|(value, _)| *value).fold(0.0, f64::max);
        let top = 76 + group * GROUP;
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{top}\" font-weight=\"bold\">{title}</text>"
        );
        for (number, ((value, unit), (_, _, colour))) in values.iter().zip(LIBRARIES).enumerate() {
            let y = top + 6 + number * BAR;
            let width = (FULL * value / most).max(1.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{}\">{} {unit}</text>",
                BAR - 2,
                LEFT as f64 + width + 5.0,
                y + BAR - 3,
                figure(*value),
            );
        }
    }
    let told = source
        .replace('`', "")
        .replace('&', "&amp;")
        .replace('<', "&lt;");
    let words = told.split("Machine: ").nth(1).unwrap_or(&told);
    let (machine, rest) = words.split_once("Command:").unwrap_or((words, ""));
    let date = rest
        .rsplit_once("Date:")
        .map_or("", |(_, date)| date.trim());
    let _ = write!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" font-size=\"11\">Medians of the table in docs/performance.md. {} {date}</text>\n</svg>\n",
        height - 14,
        machine.trim(),
    );
    Ok(svg)
}

/// Three digits.
fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}
