//! Costs from times: least squares with residuals relative to the time, so
//! that a small message counts as much as a large one.

/// Time of one transfer in fragments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piped {
    pub bytes: f64,
    pub fragment: f64,
    pub ns: f64,
}

/// Solves for `x`, `y` the least squares of `a x + b y = 1`.
fn two(rows: impl Iterator<Item = (f64, f64)>) -> Option<(f64, f64)> {
    let (mut aa, mut ab, mut bb, mut a1, mut b1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (a, b) in rows {
        aa += a * a;
        ab += a * b;
        bb += b * b;
        a1 += a;
        b1 += b;
    }
    let det = aa * bb - ab * ab;
    // Relative to the terms, to be independent of units.
    (det > 1e-12 * aa * bb).then(|| ((a1 * bb - b1 * ab) / det, (aa * b1 - ab * a1) / det))
}

/// Copy per byte and overhead per fragment.
pub(super) fn pipeline(latency_ns: f64, times: &[Piped]) -> (f64, f64) {
    let rows = || {
        times.iter().map(|t| {
            // At least half of the measurement: noise in the latency must
            // not reverse the rest.
            let ns = (t.ns - 3.0 * latency_ns).max(t.ns / 2.0);
            ((t.bytes + t.fragment) / ns, (t.bytes / t.fragment) / ns)
        })
    };
    match two(rows()) {
        Some((copy, overhead)) if copy > 0.0 && overhead > 0.0 => (copy, overhead),
        // Noise hid one of them: the other alone, and 1 ns for the first.
        Some((copy, _)) if copy > 0.0 => (alone(rows().map(|r| r.0)), 1.0),
        _ => (1e-4, alone(rows().map(|r| r.1))),
    }
}

/// Fixed part and part per byte of (bytes, ns).
pub(super) fn line(times: &[(f64, f64)]) -> (f64, f64) {
    let rows = || times.iter().map(|(bytes, ns)| (1.0 / ns, bytes / ns));
    match two(rows()) {
        Some((fixed, each)) if fixed > 0.0 && each > 0.0 => (fixed, each),
        Some((fixed, _)) if fixed > 0.0 => (alone(rows().map(|r| r.0)), 1e-4),
        _ => (1.0, alone(rows().map(|r| r.1))),
    }
}

/// Least squares of `a x = 1`.
fn alone(rows: impl Iterator<Item = f64>) -> f64 {
    let (mut aa, mut a1) = (0.0, 0.0);
    for a in rows {
        aa += a * a;
        a1 += a;
    }
    if aa > 0.0 { (a1 / aa).max(1e-4) } else { 1e-4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs()
    }

    #[test]
    fn exact_times_give_exact_costs() {
        let (latency, copy, overhead) = (90.0, 0.04, 70.0);
        let mut times = Vec::new();
        for bytes in [4e5, 1e6] {
            for fragment in [2048.0, 8192.0, 32768.0] {
                let ns = 3.0 * latency + (bytes + fragment) * copy + bytes / fragment * overhead;
                times.push(Piped {
                    bytes,
                    fragment,
                    ns,
                });
            }
        }
        let (c, o) = pipeline(latency, &times);
        assert!(near(c, copy) && near(o, overhead), "{c} {o}");
        let (call, each) = line(&[4096.0, 65536.0, 1e6].map(|n| (n, 2000.0 + 0.08 * n)));
        assert!(near(call, 2000.0) && near(each, 0.08), "{call} {each}");
    }

    #[test]
    fn costs_stay_positive_whatever_the_noise() {
        let falling = [(4096.0, 9000.0), (65536.0, 5000.0), (1e6, 100.0)];
        let (call, each) = line(&falling);
        assert!(call > 0.0 && each > 0.0);
        let times =
            [(4e5, 2048.0, 10.0), (4e5, 32768.0, 90_000.0)].map(|(bytes, fragment, ns)| Piped {
                bytes,
                fragment,
                ns,
            });
        let (copy, overhead) = pipeline(80.0, &times);
        assert!(copy > 0.0 && overhead > 0.0);
        let (copy, overhead) = pipeline(80.0, &[]);
        assert!(copy.is_finite() && overhead.is_finite());
    }
}
