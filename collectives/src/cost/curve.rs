//! Cost by size: piecewise linear curves.

use super::machine::Link;
use std::sync::Arc;

/// Time by bytes: through points, in straight lines.
///
/// Before the first point it is as there; behind the last it goes on as between the last
/// two. With one point, or none, it is constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Piecewise(Arc<[(f64, f64)]>);

impl Piecewise {
    /// Through these points of (bytes, ns), in order of bytes.
    pub fn through(points: &[(f64, f64)]) -> Self {
        debug_assert!(points.windows(2).all(|w| w[0].0 < w[1].0));
        Self(points.into())
    }

    /// So much for each byte.
    pub fn per_byte(ns: f64) -> Self {
        Self::through(&[(0.0, 0.0), (1.0, ns)])
    }

    /// Of a part of something longer: at least its share of what the whole takes at once.
    /// A whole that leaves the caches does so in parts, too.
    #[inline]
    pub fn of_part(&self, bytes: f64, whole: f64) -> f64 {
        let alone = self.at(bytes);
        match bytes < whole {
            true => alone.max(bytes / whole * self.at(whole)),
            false => alone,
        }
    }

    /// At a size.
    #[inline]
    pub fn at(&self, bytes: f64) -> f64 {
        let points = &self.0;
        let above = points.partition_point(|p| p.0 <= bytes);
        match points.len() {
            0 => 0.0,
            1 => points[0].1,
            _ if above == 0 => points[0].1,
            len => {
                let end = above.min(len - 1);
                let (a, b) = (points[end - 1], points[end]);
                a.1 + (b.1 - a.1) * (bytes - a.0) / (b.0 - a.0)
            }
        }
    }
}

impl From<f64> for Piecewise {
    /// So many ns for each byte.
    fn from(ns: f64) -> Self {
        Self::per_byte(ns)
    }
}

/// What messages cost by size: numbers of LogGP, each set from a size on.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Arc<[(f64, Link)]>);

/// A message of two ranks that are otherwise idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// How long it is.
    pub bytes: f64,
    /// From the send until it is received, in ns.
    pub one_way_ns: f64,
    /// For how long it occupies the processor of either end, in ns.
    pub busy_ns: f64,
}

impl Curve {
    /// What a message of this size costs.
    #[inline]
    pub fn of(&self, bytes: f64) -> &Link {
        let above = self.0.partition_point(|(from, _)| *from <= bytes);
        &self.0[above.max(1) - 1].1
    }

    /// What a message costs that is a part of something longer: at least its share of
    /// what the whole costs as one message.
    #[inline]
    pub fn of_part(&self, bytes: f64, whole: f64) -> Link {
        let mut link = *self.of(bytes);
        if self.0.len() == 1 || bytes >= whole {
            return link;
        }
        let all = self.of(whole);
        let share = bytes / whole;
        let (work, one_way) = (link.work_ns(bytes), link.one_way_ns(bytes));
        let busy = work.max(share * all.work_ns(whole));
        let took = one_way.max(share * all.one_way_ns(whole)).max(busy);
        link.overhead_ns += busy - work;
        link.latency_ns += took - one_way - 2.0 * (busy - work);
        link
    }

    /// The same where all ranks below one end share the way out, which is as wide as one
    /// message is quick.
    pub fn with_shared_way(&self) -> Self {
        let shared = |(from, link): &(f64, Link)| {
            let shared_per_byte_ns = link.per_byte_ns.max(0.0);
            let link = Link {
                shared_per_byte_ns,
                ..*link
            };
            (*from, link)
        };
        Self(self.0.iter().map(shared).collect())
    }

    /// Where processors carry the messages, as in shared memory: straight lines through
    /// what was measured, in order of size, with at least one point. The ends may work at
    /// the same time: then the latency is negative, down to what the sender works.
    pub fn measured(points: &[Point]) -> Self {
        assert!(!points.is_empty(), "a point at least");
        let last = points.len() - 1;
        let pieces = (0..points.len()).map(|at| {
            let (a, b) = match at {
                0 if last == 0 => (points[0], points[0]),
                at if at == last => (points[at - 1], points[at]),
                at => (points[at], points[at + 1]),
            };
            let width = (b.bytes - a.bytes).max(1.0);
            let slope = |f: fn(&Point) -> f64| (f(&b) - f(&a)) / width;
            let base = |f: fn(&Point) -> f64| f(&a) - slope(f) * a.bytes;
            let busy: fn(&Point) -> f64 = |p| p.busy_ns;
            let between: fn(&Point) -> f64 = |p| p.one_way_ns - 2.0 * p.busy_ns;
            let link = Link {
                latency_ns: base(between),
                overhead_ns: base(busy),
                gap_ns: 0.0,
                per_byte_ns: slope(between),
                work_per_byte_ns: slope(busy),
                shared_per_byte_ns: 0.0,
            };
            (points[at].bytes, link)
        });
        Self(pieces.collect())
    }
}

impl From<Link> for Curve {
    /// The same for all sizes.
    fn from(link: Link) -> Self {
        Self([(0.0, link)].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_through_their_points_and_on() {
        let line = Piecewise::through(&[(8.0, 10.0), (16.0, 20.0), (32.0, 24.0)]);
        for (bytes, ns) in [
            (0.0, 10.0),
            (8.0, 10.0),
            (12.0, 15.0),
            (16.0, 20.0),
            (24.0, 22.0),
            (48.0, 28.0),
        ] {
            assert_eq!(line.at(bytes), ns, "at {bytes} bytes");
        }
        assert_eq!(Piecewise::from(0.5).at(64.0), 32.0);
        assert_eq!(Piecewise::through(&[(1.0, 7.0)]).at(100.0), 7.0);
        assert_eq!(Piecewise::through(&[]).at(100.0), 0.0);
    }

    #[test]
    fn measured_messages_cost_what_was_measured() {
        let point = |bytes, one_way_ns, busy_ns| Point {
            bytes,
            one_way_ns,
            busy_ns,
        };
        let points = [
            point(0.0, 100.0, 30.0),
            point(1024.0, 300.0, 120.0),
            // Both ends work at the same time.
            point(65536.0, 5000.0, 5000.0),
        ];
        let curve = Curve::measured(&points);
        for p in &points {
            let link = curve.of(p.bytes);
            assert!((link.one_way_ns(p.bytes) - p.one_way_ns).abs() < 1e-6);
            assert!((link.work_ns(p.bytes) - p.busy_ns).abs() < 1e-6);
        }
        // Between them in straight lines, and on behind the last.
        assert!((curve.of(512.0).one_way_ns(512.0) - 200.0).abs() < 1e-6);
        let slope = 4700.0 / 64512.0;
        let far = curve.of(131_072.0).one_way_ns(131_072.0);
        assert!((far - (5000.0 + 65536.0 * slope)).abs() < 1e-6);
        // A part of a long one costs its share of that, or what it costs alone.
        let part = curve.of_part(16384.0, 65536.0);
        let alone = curve.of(16384.0).work_ns(16384.0);
        assert!((part.work_ns(16384.0) - alone.max(1250.0)).abs() < 1e-6);
        assert!(part.one_way_ns(16384.0) >= curve.of(16384.0).one_way_ns(16384.0));
        let small = curve.of_part(8.0, 1024.0);
        assert!((small.one_way_ns(8.0) - curve.of(8.0).one_way_ns(8.0)).abs() < 1e-9);
        assert_eq!(Curve::measured(&points[..1]).of(99.0).work_ns(99.0), 30.0);
    }
}
