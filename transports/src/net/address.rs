//! Addresses of this host, and how a rank tells others where it is called.

use crate::contract::{TransportError, TransportErrorKind};
use nix::net::if_::InterfaceFlags;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Most addresses that a rank names: more are no use, and a launcher's values are short.
const MOST_ADDRESSES: usize = 8;

/// Which addresses and ports are used: `OSIER_NETWORK`.
///
/// ```
/// use osier_transports::net::NetworkSetting;
///
/// let setting: NetworkSetting = "10.77.0.0/16,ib0,ports=20000-20100".parse().unwrap();
/// assert_eq!(setting.to_string(), "10.77.0.0/16,ib0,ports=20000-20100");
/// assert!("10.77.0.0/64".parse::<NetworkSetting>().is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSetting {
    which: Vec<Which>,
    ports: Option<RangeInclusive<u16>>,
    gone_s: Option<u16>,
    lowest_goes_on: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Interface(String),
    Subnet(IpAddr, u8),
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::Interface(name) => f.write_str(name),
            Which::Subnet(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

impl fmt::Display for NetworkSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.ports.as_ref();
        let ports = ports.map(|ports| format!("ports={}-{}", ports.start(), ports.end()));
        let words: Vec<String> = (self.which.iter().map(Which::to_string))
            .chain(ports)
            .chain(self.gone_s.map(|seconds| format!("gone={seconds}s")))
            .chain(self.lowest_goes_on.then(|| "tie=lowest".into()))
            .collect();
        f.write_str(&words.join(","))
    }
}

impl std::str::FromStr for NetworkSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut setting = Self::default();
        for word in text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            if let Some(ports) = word.strip_prefix("ports=") {
                setting.ports = Some(of_ports(ports)?);
            } else if let Some(time) = word.strip_prefix("gone=") {
                setting.gone_s = Some(of_seconds(time)?);
            } else if let Some(who) = word.strip_prefix("tie=") {
                if who != "lowest" {
                    return Err(format!("tie={}: not known (hint: tie=lowest)", shown(who)));
                }
                setting.lowest_goes_on = true;
            } else if let Some((address, bits)) = word.split_once('/') {
                setting.which.push(of_subnet(address, bits)?);
            } else {
                let name = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
                let begins = word.starts_with(|c: char| c.is_ascii_alphabetic());
                if word.len() > 15 || !begins || !word.chars().all(name) {
                    let shown: String = word.chars().take(40).collect();
                    return Err(format!(
                        "{shown:?} is no interface (hint: eth0, 10.1.0.0/16, ports=20000-20100, with commas between)"
                    ));
                }
                setting.which.push(Which::Interface(word.to_owned()));
            }
        }
        Ok(setting)
    }
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

fn of_seconds(text: &str) -> Result<u16, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let seconds = number.filter(|seconds| (2..=600).contains(seconds));
    seconds.ok_or_else(|| format!("gone={}: 2 to 600 seconds (hint: gone=5s)", shown(text)))
}

fn of_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let shown: String = text.chars().take(40).collect();
    let bad = || format!("ports={shown}: no range of ports (hint: ports=20000-20100)");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(bad()),
    }
}

fn of_subnet(address: &str, bits: &str) -> Result<Which, String> {
    let shown: String = format!("{address}/{bits}").chars().take(60).collect();
    let bad = || format!("{shown} is no subnet (hint: 10.1.0.0/16 or fd00::/8)");
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.parse().ok().filter(|bits| *bits <= most);
    Ok(Which::Subnet(address, bits.ok_or_else(bad)?))
}

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// Name of the interface.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// Why it is not offered to others, if it is not.
    pub left_out: Option<&'static str>,
}

impl NetworkSetting {
    /// How long a host may be silent until its ranks are given up, if that is said.
    pub fn gone_after(&self) -> Option<Duration> {
        self.gone_s
            .map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// Whether, of two halves of a cut network, that of the lowest rank goes on.
    pub fn lowest_goes_on(&self) -> bool {
        self.lowest_goes_on
    }

    fn takes(&self, interface: &str, address: IpAddr) -> bool {
        let matches = |which: &Which| match which {
            Which::Interface(name) => name == interface,
            Which::Subnet(net, bits) => inside(*net, *bits, address),
        };
        self.which.is_empty() || self.which.iter().any(matches)
    }

    /// Addresses of this host, those to be offered first, best guess first.
    ///
    /// # Errors
    /// The system does not say.
    pub fn addresses(&self) -> Result<Vec<LocalAddress>, TransportError> {
        let all = nix::ifaddrs::getifaddrs().map_err(|e| failed("listing interfaces", e))?;
        let mut found = Vec::new();
        for one in all {
            let Some(address) = one.address.as_ref().and_then(ip_of) else {
                continue;
            };
            let up = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
            let left_out = match address {
                _ if !one.flags.contains(up) => Some("the interface is down"),
                IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("valid on its link alone"),
                IpAddr::V4(v4) if v4.is_link_local() => Some("valid on its link alone"),
                _ if !self.takes(&one.interface_name, address) => {
                    Some("OSIER_NETWORK names others")
                }
                _ => None,
            };
            found.push(LocalAddress {
                interface: one.interface_name,
                address,
                left_out,
            });
        }
        // Those of loopback reach other hosts never, and this one where there is nothing else.
        let others = |a: &LocalAddress| a.left_out.is_none() && !a.address.is_loopback();
        if self.which.is_empty() && found.iter().any(others) {
            let loopback = |a: &&mut LocalAddress| a.left_out.is_none() && a.address.is_loopback();
            for one in found.iter_mut().filter(loopback) {
                one.left_out = Some("reaches this host alone");
            }
        }
        found.sort_by_key(|a| {
            (
                a.left_out.is_some(),
                is_bridge(&a.interface),
                a.address.is_ipv6(),
            )
        });
        Ok(found)
    }

    /// Listens, and says where.
    ///
    /// # Errors
    /// No address is left, or no port.
    pub fn listen(&self) -> Result<(TcpListener, Vec<SocketAddr>), TransportError> {
        let offered: Vec<IpAddr> = (self.addresses()?.into_iter())
            .filter(|a| a.left_out.is_none())
            .map(|a| a.address)
            .take(MOST_ADDRESSES)
            .collect();
        if offered.is_empty() {
            return Err(TransportError::new(
                TransportErrorKind::Unavailable,
                format!(
                    "no address of this host is left to be called at{} (hint: ip address lists them)",
                    match self.which.is_empty() {
                        true => String::new(),
                        false => format!(" with OSIER_NETWORK={self}"),
                    }
                ),
            ));
        }
        let listener = self.bind()?;
        let port = listener
            .local_addr()
            .map_err(|e| TransportError::os("a listener", &e))?;
        let at = |address| SocketAddr::new(address, port.port());
        let reached = |a: &IpAddr| port.is_ipv6() || a.is_ipv4();
        Ok((
            listener,
            offered.into_iter().filter(reached).map(at).collect(),
        ))
    }

    fn bind(&self) -> Result<TcpListener, TransportError> {
        let mut last = None;
        for port in self.ports.clone().unwrap_or(0..=0) {
            // One socket for both families, where the system has both.
            for any in [
                IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            ] {
                match TcpListener::bind(SocketAddr::new(any, port)) {
                    Ok(listener) => return Ok(listener),
                    Err(e) => last = Some(e),
                }
            }
        }
        let what = match &self.ports {
            None => "listening".to_owned(),
            Some(ports) => format!("listening at ports {} to {}", ports.start(), ports.end()),
        };
        let e = last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into());
        Err(TransportError::os(what, &e))
    }
}

fn failed(what: &str, e: nix::Error) -> TransportError {
    TransportError::os(what, &std::io::Error::from(e))
}

fn ip_of(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
}

/// Names that container engines and virtual machines give to bridges of one host. A guess for
/// the order alone: all are tried.
fn is_bridge(interface: &str) -> bool {
    [
        "docker",
        "virbr",
        "br-",
        "lxc",
        "cni",
        "podman",
        "tailscale",
    ]
    .iter()
    .any(|name| interface.starts_with(name))
}

fn inside(net: IpAddr, bits: u8, address: IpAddr) -> bool {
    fn same(a: &[u8], b: &[u8], bits: usize) -> bool {
        let whole = bits / 8;
        let mask = !(0xffu16 >> (bits % 8)) as u8;
        a[..whole] == b[..whole] && (bits.is_multiple_of(8) || (a[whole] ^ b[whole]) & mask == 0)
    }
    match (net, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(&a.octets(), &b.octets(), bits.into()),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(&a.octets(), &b.octets(), bits.into()),
        _ => false,
    }
}

/// Where a rank is called.
///
/// ```
/// use osier_transports::net::Card;
///
/// let card = Card {
///     host: "node-7".into(),
///     addresses: vec!["10.0.0.7:4000".parse().unwrap(), "[fd00::7]:4000".parse().unwrap()],
/// };
/// assert_eq!(card.to_text(), "node-7|10.0.0.7:4000|[fd00::7]:4000");
/// assert_eq!(Card::of_text(&card.to_text()), Some(card));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Name of its host, for people.
    pub host: String,
    /// Its addresses, best guess first.
    pub addresses: Vec<SocketAddr>,
}

impl Card {
    /// A word without spaces and equals signs, as launchers pass them on.
    pub fn to_text(&self) -> String {
        let addresses = self.addresses.iter().map(SocketAddr::to_string);
        let words: Vec<String> = std::iter::once(self.host.clone())
            .chain(addresses)
            .collect();
        words.join("|")
    }

    /// Reads [`Card::to_text`].
    pub fn of_text(text: &str) -> Option<Self> {
        let (host, rest) = text.split_once('|')?;
        let addresses: Result<Vec<SocketAddr>, _> = rest.split('|').map(str::parse).collect();
        let addresses = addresses.ok().filter(|a| a.len() <= MOST_ADDRESSES)?;
        Some(Self {
            host: host.to_owned(),
            addresses,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets_take_what_lies_inside() {
        let takes = |setting: &str, address: &str| {
            let setting: NetworkSetting = setting.parse().expect("a setting");
            setting.takes("eth0", address.parse().expect("an address"))
        };
        assert!(takes("", "10.1.2.3"));
        assert!(takes("10.1.0.0/16", "10.1.2.3") && !takes("10.1.0.0/16", "10.2.0.1"));
        assert!(takes("10.1.2.0/23", "10.1.3.255") && !takes("10.1.2.0/23", "10.1.4.0"));
        assert!(takes("0.0.0.0/0", "1.2.3.4") && !takes("0.0.0.0/0", "fd00::1"));
        assert!(takes("fd00::/8", "fdff::1") && !takes("fd00::/8", "fe00::1"));
        assert!(takes("10.1.2.3/32", "10.1.2.3") && !takes("10.1.2.3/32", "10.1.2.2"));
        assert!(takes("ib0,eth0", "1.2.3.4") && !takes("ib0", "1.2.3.4"));
    }

    #[test]
    fn settings_say_what_happens_where_a_network_fails() {
        let text = "eth0,gone=2s,tie=lowest";
        let setting: NetworkSetting = text.parse().expect("a setting");
        assert_eq!(setting.to_string(), text);
        assert_eq!(setting.gone_after(), Some(Duration::from_secs(2)));
        assert!(setting.lowest_goes_on());
        assert!(setting.takes("eth0", IpAddr::from([10, 0, 0, 1])));
        let default = NetworkSetting::default();
        assert_eq!(
            (default.gone_after(), default.lowest_goes_on()),
            (None, false)
        );
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for bad in [
            "10.0.0.0/33",
            "x/8",
            "ports=0-5",
            "ports=9-5",
            "ports=a",
            "a b",
            "eth0/8",
            "gone=1s",
            "gone=soon",
            "gone=601",
            "tie=highest",
        ] {
            let e = bad.parse::<NetworkSetting>().expect_err(bad);
            assert!(e.contains("hint"), "{e}");
        }
    }

    #[test]
    fn a_listener_is_found_at_one_of_its_ports() {
        let setting: NetworkSetting = "127.0.0.0/8,ports=42311-42399".parse().expect("a setting");
        let (first, at) = setting.listen().expect("a port");
        let (second, other) = setting.listen().expect("another port");
        assert!(
            at.iter()
                .all(|a| a.ip().is_loopback() && (42311..42400).contains(&a.port()))
        );
        assert_ne!(at, other);
        drop((first, second));
        let none: NetworkSetting = "no-such-if0".parse().expect("a setting");
        let e = none.listen().expect_err("no address").to_string();
        assert!(e.contains("OSIER_NETWORK=no-such-if0"), "{e}");
    }

    #[test]
    fn cards_that_make_no_sense_are_refused() {
        for bad in [
            "",
            "host",
            "host|",
            "host|10.0.0.1",
            "host|x:1",
            "host|1.2.3.4:70000",
        ] {
            assert_eq!(Card::of_text(bad), None, "{bad}");
        }
        assert_eq!(Card::of_text(&format!("h{}", "|1.2.3.4:1".repeat(9))), None);
    }
}
