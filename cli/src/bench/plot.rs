//! Curves as SVG: logarithmic axes, a colour and a mark a curve, the floor
//! dashed.

use std::fmt::Write;

/// One curve.
pub struct Curve {
    pub label: String,
    pub points: Vec<Point>,
}

/// One point.
pub struct Point {
    pub bytes: usize,
    pub value: f64,
    pub floor: Option<f64>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 56.0;
/// Told apart by those who see few colours, too (Okabe and Ito, 2008).
const COLOURS: [&str; 7] = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
];

/// An axis in logarithms.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let share = (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln());
        self.from + share * (self.to - self.from)
    }
}

/// The picture.
pub fn svg(title: &str, unit: &str, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|c| &c.points);
    let sizes = || points().map(|p| p.bytes.max(1) as f64);
    let values = || points().flat_map(|p| [Some(p.value), p.floor]).flatten();
    let (x_low, x_high) = bounds(sizes(), 2.0);
    let (y_low, y_high) = bounds(values(), 10.0);
    let x = Axis {
        low: x_low,
        high: x_high,
        from: LEFT,
        to: WIDTH - RIGHT,
    };
    let y = Axis {
        low: y_low,
        high: y_high,
        from: HEIGHT - BOTTOM,
        to: TOP,
    };
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"24\" font-size=\"16\" text-anchor=\"middle\">{}</text>\n",
        WIDTH / 2.0,
        escaped(title)
    );
    grid(&mut s, &x, &y, unit);
    let floor = curves
        .iter()
        .find(|c| c.points.iter().any(|p| p.floor.is_some()));
    if let Some(curve) = floor {
        let line: Vec<_> = curve
            .points
            .iter()
            .filter_map(|p| Some((x.at(p.bytes.max(1) as f64), y.at(p.floor?))))
            .collect();
        path(&mut s, &line, "#888888", "stroke-dasharray=\"6 4\"");
    }
    for (at, curve) in curves.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let line: Vec<_> = curve
            .points
            .iter()
            .filter(|p| p.value > 0.0)
            .map(|p| (x.at(p.bytes.max(1) as f64), y.at(p.value)))
            .collect();
        path(&mut s, &line, colour, "");
        for (px, py) in line {
            mark(&mut s, at, px, py, colour);
        }
    }
    legend(&mut s, curves, floor.is_some(), unit);
    s += "</svg>\n";
    s
}

/// Whole powers of `base` around the values.
fn bounds(values: impl Iterator<Item = f64>, base: f64) -> (f64, f64) {
    let mut low = f64::INFINITY;
    let mut high = 0.0f64;
    for v in values.filter(|v| *v > 0.0 && v.is_finite()) {
        low = low.min(v);
        high = high.max(v);
    }
    if low > high {
        return (1.0, base);
    }
    let low = base.powf((low.ln() / base.ln() + 1e-9).floor());
    let high = base.powf((high.ln() / base.ln() - 1e-9).ceil());
    if high <= low {
        (low, low * base)
    } else {
        (low, high)
    }
}

fn grid(s: &mut String, x: &Axis, y: &Axis, unit: &str) {
    let (left, right, top, bottom) = (x.from, x.to, y.to, y.from);
    let doublings = (x.high / x.low).log2().round() as i32;
    let step = (doublings / 12 + 1).max(1);
    for k in (0..=doublings).step_by(step as usize) {
        let value = x.low * 2f64.powi(k);
        let at = x.at(value);
        let _ = writeln!(
            s,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            size(value)
        );
    }
    let mut value = y.low;
    while value <= y.high * 1.001 {
        let at = y.at(value);
        let _ = writeln!(
            s,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#c8c8c8\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            at + 4.0,
            plain(value)
        );
        for k in 2..10 {
            let between = value * f64::from(k);
            if between < y.high {
                let at = y.at(between);
                let _ = writeln!(
                    s,
                    "<line x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" \
                     stroke=\"#f2f2f2\"/>"
                );
            }
        }
        value *= 10.0;
    }
    let _ = writeln!(
        s,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" fill=\"none\" \
         stroke=\"#444444\"/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">message size (bytes)</text>\
         <text transform=\"translate(20 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        right - left,
        bottom - top,
        f64::midpoint(left, right),
        HEIGHT - 14.0,
        f64::midpoint(top, bottom),
        escaped(unit)
    );
}

fn path(s: &mut String, line: &[(f64, f64)], colour: &str, style: &str) {
    let points: Vec<String> = line.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        s,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" {style}/>",
        points.join(" ")
    );
}

fn mark(s: &mut String, curve: usize, x: f64, y: f64, colour: &str) {
    let _ = match curve % 3 {
        0 => writeln!(
            s,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\" fill=\"{colour}\"/>"
        ),
        1 => writeln!(
            s,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6.4\" height=\"6.4\" fill=\"{colour}\"/>",
            x - 3.2,
            y - 3.2
        ),
        _ => writeln!(
            s,
            "<path d=\"M{x:.1} {:.1} l4 7 h-8 z\" fill=\"{colour}\"/>",
            y - 4.5
        ),
    };
}

fn legend(s: &mut String, curves: &[Curve], floor: bool, unit: &str) {
    let widest = curves.iter().map(|c| c.label.len()).max().unwrap_or(0);
    let width = 60.0 + 6.6 * widest.max(10) as f64;
    let rows = curves.len() + usize::from(floor);
    // Times rise to the right, and so do most rates: above left is free for
    // times, below right for rates.
    let (x, y) = if matches!(unit, "us" | "ms") {
        (LEFT + 12.0, TOP + 12.0)
    } else {
        let height = 10.0 + 18.0 * rows as f64;
        (
            WIDTH - RIGHT - 12.0 - width,
            HEIGHT - BOTTOM - 12.0 - height,
        )
    };
    let _ = writeln!(
        s,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{}\" fill=\"white\" \
         fill-opacity=\"0.85\" stroke=\"#aaaaaa\"/>",
        10.0 + 18.0 * rows as f64
    );
    for row in 0..rows {
        let at = y + 16.0 + 18.0 * row as f64;
        let (label, colour, style) = match curves.get(row) {
            Some(curve) => (&curve.label[..], COLOURS[row % COLOURS.len()], ""),
            None => ("floor", "#888888", "stroke-dasharray=\"6 4\""),
        };
        path(s, &[(x + 8.0, at), (x + 40.0, at)], colour, style);
        if row < curves.len() {
            mark(s, row, x + 24.0, at, colour);
        }
        let _ = writeln!(
            s,
            "<text x=\"{}\" y=\"{}\">{}</text>",
            x + 48.0,
            at + 4.0,
            escaped(label)
        );
    }
}

fn size(bytes: f64) -> String {
    let n = bytes as u64;
    match n {
        n if n >= 1 << 30 && n.is_multiple_of(1 << 30) => format!("{}G", n >> 30),
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

fn plain(value: f64) -> String {
    if value >= 1e6 {
        format!("1e{}", value.log10().round())
    } else if value >= 1.0 {
        format!("{value:.0}")
    } else {
        let digits = (-value.log10()).ceil().max(0.0) as usize;
        format!("{value:.digits$}")
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_powers_around_the_values() {
        let (low, high) = bounds([0.07, 150.0].into_iter(), 10.0);
        assert!((low - 0.01).abs() < 1e-9 && (high - 1000.0).abs() < 1e-6);
        assert_eq!(bounds([].into_iter(), 10.0), (1.0, 10.0));
        assert_eq!(bounds([8.0].into_iter(), 2.0), (8.0, 16.0));
    }

    #[test]
    fn a_picture_has_every_curve() {
        let curves: Vec<Curve> = ["a<b", "c"]
            .iter()
            .map(|label| Curve {
                label: (*label).into(),
                points: (0..10)
                    .map(|k| Point {
                        bytes: 1 << k,
                        value: 0.1 * f64::from(1 + k),
                        floor: Some(0.05),
                    })
                    .collect(),
            })
            .collect();
        let picture = svg("title", "us", &curves);
        assert_eq!(picture.matches("<polyline").count(), 3 + 3);
        assert!(picture.contains("a&lt;b") && picture.contains("floor"));
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        // Nothing at all is a picture, too.
        assert!(!svg("", "us", &[]).contains("NaN"));
    }
}
