//! Lists and files of hosts: all ranks run on this machine, so they may name no other.
//!
//! # Sources
//! Hydra's host files (`HOST[:RANKS] [key=value]...`, `#` before comments), Open MPI's
//! (`[USER@]HOST [slots=N]...`), and lists of batch systems, which repeat a host per slot.

use osier_kernels::files;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;

/// A host file is no longer.
const MOST_BYTES: u64 = 16 << 20;

/// That all hosts of `HOST[:RANKS],...` are this machine.
pub fn list_is_here(list: &str) -> Result<(), String> {
    let own = own_name();
    list.split(',')
        .try_for_each(|word| is_here(word.trim(), &own))
}

/// That all hosts of a file are this machine.
pub fn file_is_here(path: &Path) -> Result<(), String> {
    let text = files::read_text(path, MOST_BYTES)
        .map_err(|e| format!("cannot read the host file {}: {e}", path.display()))?;
    let own = own_name();
    let mut seen: Vec<&str> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let Some(word) = line.split_whitespace().next() else {
            continue;
        };
        if seen.contains(&word) {
            continue;
        }
        is_here(word, &own).map_err(|e| format!("{}:{}: {e}", path.display(), number + 1))?;
        seen.push(word);
    }
    match seen.is_empty() {
        true => Err(format!("{} names no host", path.display())),
        false => Ok(()),
    }
}

fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// That a word of a list, `[USER@]HOST[:RANKS]`, is this machine, whose name is `own`.
fn is_here(word: &str, own: &str) -> Result<(), String> {
    let word = word.rsplit_once('@').map_or(word, |(_, host)| host);
    let host = name_of(word);
    if is_own_name(host, own) || addresses(host).iter().any(|address| is_own(*address)) {
        return Ok(());
    }
    Err(format!(
        "host {host} is not this machine ({own}), and ranks run on one machine so far"
    ))
}

/// The host without the number of its ranks. An address of version 6 has colons of its own.
fn name_of(word: &str) -> &str {
    if let Some((address, _)) = word.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match word.split_once(':') {
        Some((name, ranks)) if !ranks.contains(':') => name,
        _ => word,
    }
}

fn is_own_name(host: &str, own: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let without_domain = !own.contains('.') && short(host) == own && !own.is_empty();
    let equal = |name: &str| host.eq_ignore_ascii_case(name) && !name.is_empty();
    equal("localhost") || equal(own) || equal(&short(own)) || without_domain
}

/// What a name stands for; nothing if it is not known.
fn addresses(host: &str) -> Vec<IpAddr> {
    let found = (host, 0).to_socket_addrs();
    found.map_or_else(|_| Vec::new(), |all| all.map(|a| a.ip()).collect())
}

/// Whether an address is one of this machine: others cannot be bound to.
fn is_own(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        for (word, own) in [
            ("localhost", "h0"),
            ("localhost:4", "h0"),
            ("127.0.0.1", "h0"),
            ("127.3.2.1:2", "h0"),
            ("h0", "h0"),
            ("H0:2", "h0"),
            ("h0", "h0.cluster"),
            ("h0.cluster", "h0.cluster"),
            ("h0.cluster:8", "h0"),
            ("me@h0", "h0"),
        ] {
            assert_eq!(is_here(word, own), Ok(()), "{word} on {own}");
        }
        for (word, own) in [
            ("h1.invalid", "h0"),
            ("h0.invalid", "h0.cluster"),
            ("h00.invalid:2", "h0"),
            ("192.0.2.1", "h0"),
            ("0.0.0.0", "h0"),
            ("", "h0"),
            ("", ""),
        ] {
            let e = is_here(word, own).expect_err(word);
            assert!(e.contains("is not this machine"), "{e}");
        }
        for (word, name) in [
            ("h0:4", "h0"),
            ("::1", "::1"),
            ("[::1]:4", "::1"),
            ("fe80::1", "fe80::1"),
        ] {
            assert_eq!(name_of(word), name);
        }
    }

    #[test]
    fn host_files() {
        let file = std::env::temp_dir().join(format!("osier-hosts-{}", std::process::id()));
        let check = |text: &str| {
            std::fs::write(&file, text).expect("a file");
            file_is_here(&file)
        };
        assert_eq!(
            check("# a comment\nlocalhost:2\n127.0.0.1 slots=4 # x\n\nlocalhost\n"),
            Ok(())
        );
        let e = check("localhost\nelsewhere.invalid slots=2\n").expect_err("another host");
        assert!(e.contains(":2: host elsewhere.invalid is not"), "{e}");
        let e = check("# nothing\n\n").expect_err("no host");
        assert!(e.contains("names no host"), "{e}");
        std::fs::remove_file(&file).expect("it is there");
        for missing in [file.as_path(), Path::new("/"), Path::new("/dev/zero")] {
            let e = file_is_here(missing).expect_err("no file");
            assert!(e.contains("cannot read the host file"), "{e}");
        }
    }
}
