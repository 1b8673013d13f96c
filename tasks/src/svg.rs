//! SVG: boxes, edges, texts. Pure.
//!
//! # Invariants
//! 1. Every text is escaped.
//!
//! # Sources
//! "Scalable Vector Graphics (SVG) 1.1", W3C, 2011: paths, markers, text.

use std::fmt::Write as _;

/// Sizes of text and of a line of it, in pixels.
pub(crate) const LARGE: f64 = 14.0;
pub(crate) const SMALL: f64 = 12.0;
pub(crate) const LINE: f64 = 18.0;
/// Longest name that is written in a box; the whole one is its title.
const LONGEST: usize = 32;
/// Ranks that the legend names.
const MOST_RANKS: usize = 16;

/// Width of a text, a little more than most fonts take.
pub(crate) fn width_of(text: &str, size: f64) -> f64 {
    let em = text.chars().map(|c| if c.is_ascii() { 0.62 } else { 1.0 });
    em.sum::<f64>() * size
}

pub(crate) fn short(name: &str) -> String {
    match name.char_indices().nth(LONGEST) {
        None => name.into(),
        Some(_) => name.chars().take(LONGEST - 1).chain(['…']).collect(),
    }
}

/// A light color of a rank; hues of near ranks lie far apart.
pub(crate) fn color(rank: usize) -> String {
    let hue = (rank as u64 % 360) * 137 % 360;
    format!("hsl({hue}, 70%, 85%)")
}

/// Text within an element or an attribute.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // No character of a document.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                escaped.push('\u{fffd}');
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// A drawing that knows its size.
#[derive(Default)]
pub(crate) struct Canvas {
    /// Edges are below boxes, whenever they were drawn.
    edges: String,
    boxes: String,
    /// Lines of text under it, each with a color of its own if it has one.
    notes: Vec<(Option<String>, String)>,
    least: (f64, f64),
    most: (f64, f64),
}

impl Canvas {
    fn covers(&mut self, (x, y): (f64, f64)) {
        self.least = (self.least.0.min(x), self.least.1.min(y));
        self.most = (self.most.0.max(x), self.most.1.max(y));
    }

    fn path(&mut self, d: &str, style: &str, title: &str) {
        let title = match title {
            "" => String::new(),
            title => format!("<title>{}</title>", escaped(title)),
        };
        let end = if style.contains("critical") {
            "critical-end"
        } else {
            "end"
        };
        let _ = writeln!(
            self.edges,
            "<path class=\"{style}\" marker-end=\"url(#{end})\" d=\"{d}\">{title}</path>"
        );
    }

    /// An edge to the right, or a plain curve back; returns its middle.
    pub fn through(
        &mut self,
        from: (f64, f64),
        bends: &[(f64, f64, f64)],
        to: (f64, f64),
        style: &str,
        title: &str,
    ) -> (f64, f64) {
        let mut d = format!("M{}", Point(from));
        let mut at = from;
        let mut curve = |d: &mut String, at: (f64, f64), to: (f64, f64)| {
            // Level at both ends.
            let reach = ((to.0 - at.0) / 2.0).abs().max(30.0);
            let (a, b) = ((at.0 + reach, at.1), (to.0 - reach, to.1));
            let _ = write!(d, " C{} {} {}", Point(a), Point(b), Point(to));
            [a, b, to].into_iter().for_each(|point| self.covers(point));
        };
        for (left, right, y) in bends {
            curve(&mut d, at, (*left, *y));
            let _ = write!(d, " L{}", Point((*right, *y)));
            at = (*right, *y);
        }
        curve(&mut d, at, to);
        self.path(&d, style, title);
        let first = bends.first().map_or(to, |bend| (bend.0, bend.2));
        ((from.0 + first.0) / 2.0, (from.1 + first.1) / 2.0)
    }

    /// An edge along a line below its boxes; returns the middle of that.
    pub fn below(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        y: f64,
        style: &str,
        title: &str,
    ) -> (f64, f64) {
        let (right, left) = (from.0 + 28.0, to.0 - 28.0);
        let d = format!(
            "M{} C{} {} {} L{} C{} {} {}",
            Point(from),
            Point((right, from.1)),
            Point((right, y)),
            Point((from.0, y)),
            Point((to.0, y)),
            Point((left, y)),
            Point((left, to.1)),
            Point(to)
        );
        self.covers((left, y));
        self.covers((right, y));
        self.path(&d, style, title);
        ((from.0 + to.0) / 2.0, y)
    }

    /// An edge between two boxes of a column, on the side of it.
    pub fn beside(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        side: f64,
        style: &str,
        title: &str,
    ) {
        let reach = side * (24.0 + (to.1 - from.1).abs() / 12.0).min(60.0);
        let (a, b) = ((from.0 + reach, from.1), (to.0 + reach, to.1));
        let d = format!("M{} C{} {} {}", Point(from), Point(a), Point(b), Point(to));
        self.covers(a);
        self.covers(b);
        self.path(&d, style, title);
    }

    pub fn rect(&mut self, at: (f64, f64), size: (f64, f64), style: &str, fill: &str, title: &str) {
        let fill = match fill {
            "" => String::new(),
            fill => format!(" style=\"fill: {fill}\""),
        };
        let _ = writeln!(
            self.boxes,
            "<rect class=\"{style}\"{fill} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\">\
             <title>{}</title></rect>",
            Px(at.0),
            Px(at.1),
            Px(size.0),
            Px(size.1),
            escaped(title)
        );
        self.covers(at);
        self.covers((at.0 + size.0, at.1 + size.1));
    }

    pub fn dot(&mut self, at: (f64, f64)) {
        let _ = writeln!(
            self.boxes,
            "<circle cx=\"{}\" cy=\"{}\" r=\"3\"/>",
            Px(at.0),
            Px(at.1)
        );
    }

    pub fn text(&mut self, at: (f64, f64), style: &str, text: &str) {
        let _ = writeln!(
            self.boxes,
            "<text class=\"{style}\" x=\"{}\" y=\"{}\">{}</text>",
            Px(at.0),
            Px(at.1),
            escaped(text)
        );
    }

    pub fn note(&mut self, text: &str) {
        if !text.is_empty() {
            self.notes.push((None, text.into()));
        }
    }

    pub fn legend(&mut self, ranks: usize) {
        for rank in 0..ranks.min(MOST_RANKS) {
            self.notes.push((Some(color(rank)), format!("rank {rank}")));
        }
        if ranks > MOST_RANKS {
            self.note(&format!("and {} more ranks", ranks - MOST_RANKS));
        }
    }

    pub fn document(mut self, title: &str) -> String {
        const MARGIN: f64 = 20.0;
        let mut y = self.most.1 + 34.0;
        let left = self.least.0;
        for (fill, text) in std::mem::take(&mut self.notes) {
            let indent = match fill {
                None => 0.0,
                Some(fill) => {
                    self.rect((left, y - 12.0), (24.0, 14.0), "task", &fill, &text);
                    32.0
                }
            };
            self.text((left + indent, y), "small", &text);
            self.covers((left + indent + width_of(&text, SMALL), y));
            y += LINE + 2.0;
        }
        let (width, height) = (
            self.most.0 - self.least.0 + 2.0 * MARGIN,
            self.most.1 - self.least.1 + 2.0 * MARGIN,
        );
        let (least_x, least_y) = (self.least.0 - MARGIN, self.least.1 - MARGIN);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"{} {} {width:.0} {height:.0}\">\n\
             <title>{}</title>\n{STYLE}\
             <rect x=\"{}\" y=\"{}\" width=\"{width:.0}\" height=\"{height:.0}\" fill=\"white\"/>\n\
             {}{}</svg>\n",
            Px(least_x),
            Px(least_y),
            escaped(title),
            Px(least_x),
            Px(least_y),
            self.edges,
            self.boxes
        )
    }
}

/// Labels that do not lie on each other.
#[derive(Default)]
pub(crate) struct Labels(Vec<(f64, f64, f64)>);

impl Labels {
    /// Writes a text above a point, or as far below as there is room.
    pub fn put(&mut self, canvas: &mut Canvas, (x, y): (f64, f64), text: &str) {
        let width = width_of(text, SMALL);
        let (left, mut y) = (x - width / 2.0, y - 4.0);
        let lies_on = |y: f64, (l, w, other): &(f64, f64, f64)| {
            left < l + w && *l < left + width && (y - other).abs() < 14.0
        };
        while self.0.iter().any(|other| lies_on(y, other)) {
            y += 14.0;
        }
        self.0.push((left, width, y));
        canvas.text((x, y), "label", text);
        canvas.covers((left, y));
        canvas.covers((left + width, y));
    }
}

const STYLE: &str = "\
<style>
text { font: 14px sans-serif; fill: #222 }
.head { font-weight: bold }
.small, .label { font-size: 12px }
.end { text-anchor: end }
.middle, .label { text-anchor: middle }
.label { paint-order: stroke; stroke: white; stroke-width: 4px }
.family { fill: #eef2f7; stroke: #555 }
.task { stroke: #777 }
.edge { fill: none; stroke: #777 }
.begins { stroke-dasharray: 5 3 }
.critical { stroke: #c00; stroke-width: 3px }
circle { fill: #555 }
</style>
<defs>
<marker id=\"end\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerUnits=\"userSpaceOnUse\" \
markerWidth=\"9\" markerHeight=\"9\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"#777\"/></marker>
<marker id=\"critical-end\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerUnits=\"userSpaceOnUse\" \
markerWidth=\"11\" markerHeight=\"11\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"#c00\"/></marker>
</defs>
";

/// A length with at most one decimal.
struct Px(f64);

impl std::fmt::Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = (self.0 * 10.0).round() as i64;
        let sign = if tenths < 0 { "-" } else { "" };
        match (tenths.unsigned_abs() / 10, tenths.unsigned_abs() % 10) {
            (whole, 0) => write!(f, "{sign}{whole}"),
            (whole, tenth) => write!(f, "{sign}{whole}.{tenth}"),
        }
    }
}

struct Point((f64, f64));

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{}", Px(self.0.0), Px(self.0.1))
    }
}
