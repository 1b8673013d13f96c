use super::*;

fn family(name: &str, outputs: &[(&str, bool)], inputs: &[&str]) -> FamilyBox {
    FamilyBox {
        name: name.into(),
        extents: vec![4, 8],
        placement: "Grid([2, 2])".into(),
        rule: "All".into(),
        inputs: inputs.iter().map(|name| (*name).into()).collect(),
        outputs: outputs.iter().map(|(name, _)| (*name).into()).collect(),
        begins: outputs.iter().map(|(_, begins)| *begins).collect(),
        took_ns: None,
    }
}

fn relation(from: (u32, u32), to: (u32, u32), label: u32, edges: u64) -> Relation {
    Relation {
        from,
        to,
        label,
        edges,
    }
}

/// Families that form a cycle, one of them with a relation to itself.
fn folded() -> Picture {
    Picture {
        ranks: 4,
        families: vec![
            family("panel", &[("left", false)], &["done"]),
            family(
                "block <a & \"b\">",
                &[("right", false), ("done", true)],
                &["in", "own"],
            ),
        ],
        relations: vec![
            relation((0, 0), (1, 0), 3, 12),
            relation((1, 0), (1, 1), 0, 1),
            relation((1, 1), (0, 0), 0, 7),
        ],
        unrolled: None,
    }
}

/// A diamond with a tail, over two ranks: 0 -> {1, 2} -> 3 -> 4, and back to 0.
fn diamond(times: Option<[u64; 5]>) -> Picture {
    let edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 0), (2, 2)];
    let edges = edges.iter().map(|(from, to)| TaskEdge {
        from: *from,
        to: *to,
        name: "out -> in".into(),
        begins: (*from, *to) == (4, 0) || from == to,
    });
    let tasks = (0..5).map(|i| TaskBox {
        name: format!("cell[{i}]"),
        rank: i % 2,
        took_ns: times.map(|times| times[i]),
    });
    Picture {
        ranks: 2,
        unrolled: Some(Unrolled {
            tasks: tasks.collect(),
            edges: edges.collect(),
        }),
        ..Picture::default()
    }
}

/// The elements of a document that is well-formed, as far as these drawings go: elements that
/// are closed in order, quoted attributes, no bare `<` or `&`. Returns each start tag.
fn elements(document: &str) -> Vec<String> {
    let (mut open, mut all, mut rest) = (Vec::new(), Vec::new(), document.trim_end());
    loop {
        let (text, tagged) = rest.split_once('<').unwrap_or((rest, ""));
        for entity in text.split('&').skip(1) {
            let known = ["amp;", "lt;", "gt;", "quot;"];
            assert!(
                known.iter().any(|name| entity.starts_with(name)),
                "&{entity}"
            );
        }
        if tagged.is_empty() {
            assert_eq!(open, Vec::<String>::new());
            return all;
        }
        let mut is_quoted = false;
        let end = tagged.char_indices().find(|(_, c)| {
            is_quoted ^= *c == '"';
            assert!(*c != '<', "a tag in a tag: {tagged}");
            *c == '>' && !is_quoted
        });
        let (tag, after) = tagged.split_at(end.expect("an end").0);
        rest = &after[1..];
        let name = tag.split_whitespace().next().expect("a name");
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        all.push(tag.to_owned());
        if !tag.ends_with('/') {
            open.push(name.to_owned());
        }
    }
}

fn count(elements: &[String], starts_with: &str) -> usize {
    elements
        .iter()
        .filter(|tag| tag.starts_with(starts_with))
        .count()
}

/// What is written in the picture, with or without a class.
fn has_text(document: &str, text: &str) -> bool {
    document.contains(&format!(">{text}</text>"))
}

#[test]
fn folded_picture_has_boxes_ports_and_edges() {
    let svg = folded().svg();
    let all = elements(&svg);
    assert_eq!(count(&all, "rect class=\"family\""), 2);
    assert_eq!(count(&all, "circle"), 6, "ports");
    assert_eq!(count(&all, "path class=\"edge\""), 2);
    assert_eq!(count(&all, "path class=\"edge begins\""), 1);
    for text in [
        "panel [4, 8]",
        "block &lt;a &amp; &quot;b&quot;&gt; [4, 8]",
        "placement: Grid([2, 2])",
        "rule: All",
        "done (begins)",
        "label 3: 12 edges",
        "1 edge",
        "7 edges",
        "dashed: ports that begin",
    ] {
        assert!(has_text(&svg, text), "{text}: {svg}");
    }
}

#[test]
fn unrolled_picture_marks_the_longest_path() {
    let picture = diamond(None);
    let svg = picture.svg();
    let all = elements(&svg);
    // 0 -> 1 -> 3 -> 4: of two of one length the lower numbers.
    assert_eq!(count(&all, "rect class=\"task critical\""), 4);
    assert_eq!(count(&all, "path class=\"edge critical\""), 3);
    assert_eq!(count(&all, "path class=\"edge\""), 2);
    assert_eq!(count(&all, "path class=\"edge begins\""), 2);
    assert!(has_text(&svg, "critical path: 4 of 5 tasks"), "{svg}");
    for text in ["cell[0]", "cell[4]", "rank 0", "rank 1"] {
        assert!(has_text(&svg, text), "{text}");
    }
    let unrolled = picture.unrolled.expect("tasks");
    let edges = unrolled.layout_edges();
    assert_eq!(unrolled.critical(&edges), (vec![0, 1, 3, 4], 4));
}

#[test]
fn critical_path_follows_measured_times() {
    let picture = diamond(Some([1_000, 2_000, 900_000, 3_000, 4_000]));
    let svg = picture.svg();
    let unrolled = picture.unrolled.expect("tasks");
    let edges = unrolled.layout_edges();
    assert_eq!(unrolled.critical(&edges), (vec![0, 2, 3, 4], 908_000));
    let note = "critical path: 908.0 us of 910.0 us in calls, 4 tasks";
    assert!(has_text(&svg, note), "{svg}");
    assert!(has_text(&svg, "900.0 us"));
}

#[test]
fn pictures_are_the_same_each_time() {
    assert_eq!(folded().svg(), folded().svg());
    assert_eq!(diamond(None).svg(), diamond(None).svg());
}

#[test]
fn names_are_escaped_and_cut() {
    let mut picture = diamond(None);
    let unrolled = picture.unrolled.as_mut().expect("tasks");
    unrolled.tasks[0].name = "</text><script>&\u{1}".into();
    unrolled.tasks[1].name = "é".repeat(100);
    unrolled.edges[0].name = "a<b -> c>d".into();
    let svg = picture.svg();
    let all = elements(&svg);
    assert_eq!(count(&all, "script"), 0);
    assert!(
        has_text(&svg, "&lt;/text&gt;&lt;script&gt;&amp;\u{fffd}"),
        "{svg}"
    );
    assert!(has_text(&svg, &format!("{}…", "é".repeat(31))));
    assert!(svg.contains(&format!("<title>{}, rank 1</title>", "é".repeat(100))));
}

#[test]
fn empty_pictures_are_documents() {
    elements(&Picture::default().svg());
    let unrolled = Picture {
        unrolled: Some(Unrolled::default()),
        ..Picture::default()
    };
    assert!(has_text(&unrolled.svg(), "critical path: 0 of 0 tasks"));
}

/// All that is drawn lies within the document.
#[test]
fn drawings_lie_within_their_view() {
    for svg in [folded().svg(), diamond(None).svg()] {
        let all = elements(&svg);
        let attribute = |tag: &str, name: &str| -> Option<String> {
            let at = tag.find(&format!(" {name}=\""))? + name.len() + 3;
            tag[at..].split('"').next().map(str::to_owned)
        };
        let view = attribute(&all[0], "viewBox").expect("a view");
        let view: Vec<f64> = view
            .split(' ')
            .map(|n| n.parse().expect("a number"))
            .collect();
        let holds = |x: f64, y: f64| {
            let inside =
                |at: f64, from: f64, size: f64| at >= from - 0.1 && at <= from + size + 0.6;
            assert!(
                inside(x, view[0], view[2]) && inside(y, view[1], view[3]),
                "{x},{y} {view:?}"
            );
        };
        for tag in &all[1..] {
            let number = |name| attribute(tag, name).and_then(|n| n.parse::<f64>().ok());
            if let (Some(x), Some(y)) = (number("x"), number("y")) {
                holds(x, y);
                holds(
                    x + number("width").unwrap_or(0.0),
                    y + number("height").unwrap_or(0.0),
                );
            }
            let is_edge = tag.starts_with("path class");
            let d = attribute(tag, "d").filter(|_| is_edge).unwrap_or_default();
            for point in d
                .split(['M', 'L', 'C', ' '])
                .filter(|point| !point.is_empty())
            {
                let (x, y) = point.split_once(',').expect("a point");
                holds(x.parse().expect("a number"), y.parse().expect("a number"));
            }
        }
    }
}
