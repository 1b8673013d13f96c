//! `gpu-report`: files a report of a GPU, and writes its tables into the documentation.

use crate::compare::table::replace_between;
use crate::steps::{Result, root};
use osier_gpu_report::archive;
use osier_gpu_report::report::{Measured, Report};
use osier_gpu_report::summary;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Where reports are kept.
const RESULTS: &str = "benches/results";
/// The page with the tables, between these lines.
const PAGE: &str = "docs/performance.md";
const MARKERS: [&str; 2] = ["<!-- gpu-report:begin -->", "<!-- gpu-report:end -->"];

/// Options of `gpu-report`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask gpu-report osier-gpu-report/report.tar.xz
                     keep the report below benches/results, and write its tables into
                     docs/performance.md
  cargo xtask gpu-report benches/results/2026-12-01-h100-0123abc.json
                     write the tables of a report that is kept already
  cargo xtask gpu-report report.json --print
                     only show the tables, also of the emulated driver")]
pub struct Args {
    /// report.json or report.tar.xz of a run of the bundle
    file: PathBuf,

    /// Print the tables, and write nothing
    #[arg(long)]
    print: bool,
}

/// `cargo xtask gpu-report`.
pub fn run(args: &Args) -> Result {
    let report = read(&args.file)?;
    let tables = tables(&report);
    if args.print {
        print!("{tables}");
        return Ok(());
    }
    if report.measured != Measured::Gpu {
        return Err(format!(
            "{}: {} (hint: --print shows its tables)",
            args.file.display(),
            report.source()
        ));
    }
    let kept = root().join(RESULTS).join(name(&report));
    let mut json = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
    json.push('\n');
    write(&kept, &json)?;
    println!("kept as {}", kept.display());
    let page = root().join(PAGE);
    let text = std::fs::read_to_string(&page).map_err(|e| format!("{PAGE}: {e}"))?;
    let [begin, end] = MARKERS;
    let new = replace_between(&text, MARKERS, tables.trim_end())
        .ok_or_else(|| format!("{PAGE} lacks the lines {begin} and {end}"))?;
    write(&page, &new)?;
    println!("wrote the tables of {PAGE}");
    Ok(())
}

fn write(file: &Path, text: &str) -> Result {
    std::fs::write(file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
}

/// The report of a file, or of the archive that holds one.
fn read(file: &Path) -> Result<Report> {
    let told = |e: std::io::Error| format!("{}: {e}", file.display());
    if file.extension().is_none_or(|ending| ending != "xz") {
        return Report::read(file).map_err(told);
    }
    let folder = std::env::temp_dir().join(format!("osier-gpu-report-{}", std::process::id()));
    let read = archive::unpack(file, &folder)
        .and_then(|()| Report::read(&folder.join("report.json")))
        .map_err(told);
    let _ = std::fs::remove_dir_all(&folder);
    read
}

/// File of a report: day, device and commit.
fn name(report: &Report) -> String {
    let plain = |text: &str| -> String {
        let letters = text.to_lowercase();
        let words: Vec<&str> = letters
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        words.join("-")
    };
    let day = report.date.split('T').next().unwrap_or("unknown");
    let commit = report.commit.chars().take(7).collect::<String>();
    format!("{day}-{}-{}.json", plain(&report.device), plain(&commit))
}

/// The tables of a report, in Markdown.
fn tables(report: &Report) -> String {
    let fact = |name: &str| report.facts.get(name).map_or("unknown", String::as_str);
    let mut text = String::new();
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    line(format!(
        "{}: {}, driver {}, kernel {}, {} cores; commit {}, {}, `{}`, {:.0} s{}.",
        match report.measured {
            Measured::Gpu => "**Measured**",
            _ => "**No figure of a GPU**",
        },
        report.source(),
        fact("driver"),
        fact("kernel"),
        fact("cores"),
        report.commit,
        report.date,
        report.command,
        report.seconds,
        match report.finished {
            true => "",
            false => ", not finished",
        }
    ));
    line("Medians; `+-` is half of what lies between the extremes of the repetitions. The roofline of a pack is what the device's copy allows for the sectors that are touched, that of a message a copy of its bytes.".into());
    let table = summary::of(report);
    line(String::new());
    line(table.markdown());
    let missed: Vec<String> = table
        .rows
        .iter()
        .filter_map(|row| {
            let bar = row.bar.filter(|bar| table.judged && !bar.is_met())?;
            Some(format!(
                "- {}: {:.3} of {}, wanted {}",
                row.figure, bar.found, bar.of, bar.wanted
            ))
        })
        .collect();
    let behind: Vec<String> = table
        .rows
        .iter()
        .filter_map(|row| {
            let ahead = row.ahead().filter(|ahead| table.judged && *ahead < 1.0)?;
            let peer = row.peer.as_ref().map_or("", |(name, _)| name);
            Some(format!("- {}: {ahead:.2} of {peer}", row.figure))
        })
        .collect();
    let failed: Vec<String> = report
        .failures()
        .map(|step| format!("- {}: {}: {:?}", step.part, step.name, step.status))
        .collect();
    for (head, rows) in [
        ("Bars that are missed:", missed),
        ("Behind the best peer:", behind),
        ("Steps that failed:", failed),
    ] {
        if !rows.is_empty() {
            line(format!("{head}\n\n{}\n", rows.join("\n")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_gpu_report::record::{OSIER, Record};
    use osier_gpu_report::report::{Measurement, Mode, Status, Step};

    fn report(measured: Measured) -> Report {
        let mut report = Report::new(
            "0123abcdef 2026-12-01 x",
            "2026-12-01T10:00:00Z",
            Mode::Quick,
        );
        report.measured = measured;
        report.device = "NVIDIA H100 80GB HBM3".into();
        report.finished = true;
        for (bench, library, value) in [
            ("pack-device-pack", OSIER, 1000.0),
            ("pack-device-copy", OSIER, 1500.0),
            ("pack-device-pack", "torch", 1200.0),
        ] {
            report.records.push(Measurement {
                step: "pack".into(),
                record: Record {
                    unit: "GB/s".into(),
                    value,
                    library: library.into(),
                    ..Record::new(bench, "V", 256 << 20)
                },
            });
        }
        report.steps.push(Step {
            part: "correctness".into(),
            name: "test trees".into(),
            status: Status::Stopped(30),
            seconds: 30.0,
            limit_seconds: 30,
            command: "test-trees".into(),
            output: String::new(),
        });
        report
    }

    #[test]
    fn tables_say_what_is_missed_and_what_failed() {
        let text = tables(&report(Measured::Gpu));
        for part in [
            "NVIDIA H100",
            "| pack V 256 MiB | GB/s | >=97% MISS | 1000 |",
            "- pack V 256 MiB: 0.667 of the device's copy, wanted 0.97",
            "- pack V 256 MiB: 0.83 of torch",
            "- correctness: test trees: Stopped(30)",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let emulated = tables(&report(Measured::Emulated));
        assert!(emulated.contains("No figure of a GPU") && !emulated.contains("MISS"));
    }

    #[test]
    fn the_page_has_a_place_for_them() {
        let text = std::fs::read_to_string(root().join(PAGE)).unwrap();
        let new = replace_between(&text, MARKERS, "new").unwrap();
        assert!(new.contains("new") && new.contains("## Collectives"));
    }

    #[test]
    fn reports_are_kept_by_day_device_and_commit() {
        let name = name(&report(Measured::Gpu));
        assert_eq!(name, "2026-12-01-nvidia-h100-80gb-hbm3-0123abc.json");
    }

    #[test]
    fn figures_of_the_emulated_driver_are_not_kept() {
        let folder = std::env::temp_dir().join(format!("osier-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        report(Measured::Emulated).write(&folder).unwrap();
        let run = run(&Args {
            file: folder.join("report.json"),
            print: false,
        });
        assert!(run.unwrap_err().contains("no figure is one of a GPU"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
