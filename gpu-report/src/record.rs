//! One measured value.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Whose value it is where nothing else is said.
pub const OSIER: &str = "osier";

/// One measured value with its company, as benchmarks and peers write it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What was measured, such as `latency` or `pack-device-pack`.
    pub bench: String,
    /// The layout of the bytes, or the plan of a collective.
    pub layout: String,
    /// Where buffers lie.
    pub memory: String,
    /// How bytes travel, or the name of the device.
    pub transport: String,
    /// Threads of each rank.
    pub threads: u32,
    /// Ranks of the job.
    pub ranks: usize,
    /// Payload of one call.
    pub bytes: usize,
    /// Unit of the value, the spread and the floor: `us`, `GB/s`, `MB/s`, `msg/s`, `x`.
    pub unit: String,
    /// The median of the repetitions.
    pub value: f64,
    /// Least and greatest of the repetitions; none where there was only one value.
    #[serde(default)]
    pub spread: Option<[f64; 2]>,
    /// What the machine allows.
    pub floor: Option<f64>,
    /// Who did it: `osier`, or a peer.
    #[serde(default = "osier")]
    pub library: String,
}

fn osier() -> String {
    OSIER.into()
}

impl Record {
    /// A value of this library on one rank and thread, without a floor or spread.
    pub fn new(bench: impl Into<String>, layout: impl Into<String>, bytes: usize) -> Record {
        Record {
            bench: bench.into(),
            layout: layout.into(),
            memory: "plain".into(),
            transport: "none".into(),
            threads: 1,
            ranks: 1,
            bytes,
            unit: String::new(),
            value: f64::NAN,
            spread: None,
            floor: None,
            library: osier(),
        }
    }

    /// Half of what lies between the extremes, as a share of the value; none where
    /// there was only one.
    pub fn relative_spread(&self) -> Option<f64> {
        let [low, high] = self.spread?;
        (self.value != 0.0).then(|| ((high - low) / 2.0 / self.value).abs())
    }
}

/// Writes the records as one JSON array. The file is replaced whole, so that a reader
/// finds all records of some moment, whenever the writer is killed.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, records: &[Record]) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(records)?;
    text.push('\n');
    replace(file, text.as_bytes())
}

/// The records of a file that [`write()`] has written.
///
/// # Errors
/// The file cannot be read, or is no array of records.
pub fn read(file: &Path) -> io::Result<Vec<Record>> {
    let text = std::fs::read_to_string(file)?;
    serde_json::from_str(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Writes a file beside the one that is there, and takes its place.
///
/// # Errors
/// The file cannot be written.
pub fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside = file.with_file_name(name);
    std::fs::write(&beside, bytes)?;
    std::fs::rename(&beside, file).inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_before_and_of_peers_are_read() {
        let text = r#"{"bench": "latency", "layout": "contiguous", "memory": "device",
            "transport": "cuda_ipc", "threads": 1, "ranks": 2, "bytes": 8, "unit": "us",
            "value": 6.0, "floor": null}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!((record.library.as_str(), record.spread), (OSIER, None));
        let peer = Record {
            library: "ucx".into(),
            spread: Some([5.0, 8.0]),
            ..record
        };
        let again: Record = serde_json::from_str(&serde_json::to_string(&peer).unwrap()).unwrap();
        assert_eq!(again, peer);
        assert_eq!(again.relative_spread(), Some(0.25));
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = std::env::temp_dir().join(format!("osier-records-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("records.json");
        let one = Record {
            value: 1.0,
            ..Record::new("pack", "V", 64)
        };
        write(&file, std::slice::from_ref(&one)).unwrap();
        write(&file, &[one.clone(), one.clone()]).unwrap();
        assert_eq!(read(&file).unwrap(), [one.clone(), one]);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
