//! Digits for the colour bar: 3 x 5 dots each, a row per octal digit.

/// Width of a character with the gap behind it, in dots.
pub const ADVANCE: usize = 4;
/// Height in dots.
pub const HEIGHT: usize = 5;

/// Calls `dot(x, y)` for each dot of a text, `y` downward.
pub fn dots(text: &str, mut dot: impl FnMut(usize, usize)) {
    for (at, c) in text.chars().enumerate() {
        let glyph = glyph(c);
        for y in 0..HEIGHT {
            for x in 0..3 {
                if glyph >> (3 * (HEIGHT - 1 - y) + (2 - x)) & 1 == 1 {
                    dot(at * ADVANCE + x, y);
                }
            }
        }
    }
}

fn glyph(c: char) -> u16 {
    match c {
        '0' => 0o75557,
        '1' => 0o26227,
        '2' => 0o71747,
        '3' => 0o71717,
        '4' => 0o55711,
        '5' => 0o74717,
        '6' => 0o74757,
        '7' => 0o71122,
        '8' => 0o75757,
        '9' => 0o75717,
        '-' => 0o00700,
        '+' => 0o02720,
        '.' => 0o00002,
        'e' => 0o25743,
        _ => 0,
    }
}
