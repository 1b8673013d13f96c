//! Reads nvdisasm's text: instructions of a module, by function.

use std::collections::HashMap;

/// Registers that read as zero, and the predicate that is true.
pub const ZERO: u8 = 255;
pub const TRUE: u8 = 7;

/// What an operand names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    Register(u8),
    /// Of the warp.
    Uniform(u8),
    Predicate(u8),
    UniformPredicate(u8),
    Number(u64),
    /// Of halves' instructions: a decimal number.
    Half(f64),
    /// Offset in a bank, behind the value of a register, which may be the warp's.
    Constant {
        bank: u8,
        register: Option<(u8, bool)>,
        offset: u32,
    },
    /// Registers and a number that add up to an address: the register has 64 bits or not.
    Memory {
        register: Option<(u8, bool)>,
        uniform: Option<u8>,
        offset: i64,
    },
    /// Of an instruction.
    Label(usize),
    Barrier(u8),
    Special(&'static str),
}

/// An operand: `-` is `negative`, `~` and `!` are `inverted`.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    pub place: Place,
    pub negative: bool,
    pub inverted: bool,
}

/// One instruction.
#[derive(Debug, Clone)]
pub struct Instruction {
    pub guard: Option<Operand>,
    /// The first word of the name, and the others with a point before each.
    pub name: String,
    pub kinds: Vec<String>,
    pub operands: Vec<Operand>,
    /// What was read, for messages.
    pub text: String,
}

impl Instruction {
    pub fn is(&self, kind: &str) -> bool {
        self.kinds.iter().any(|k| k == kind)
    }
}

/// All code of a module; a function is the number of its first instruction.
#[derive(Debug, Default)]
pub struct Module {
    pub code: Vec<Instruction>,
    pub functions: HashMap<String, usize>,
    /// Constant bank 2 of a function: where its jumps by a table go.
    pub jumps: HashMap<String, Vec<u8>>,
}

impl Module {
    pub fn parse(text: &str) -> Module {
        let mut labels = HashMap::new();
        let mut lines = Vec::new();
        let mut jumps: HashMap<String, Vec<u8>> = HashMap::new();
        let mut bank = None;
        for line in text.lines().map(str::trim) {
            if let Some((_, bytes)) = line.split_once(".byte\t").or(line.split_once(".byte ")) {
                if let Some(function) = &bank {
                    let bytes = bytes.split(',').map(|byte| number(byte.trim()));
                    let bytes = bytes.map(|byte| byte.unwrap_or_default() as u8);
                    jumps
                        .entry(String::clone(function))
                        .or_default()
                        .extend(bytes);
                }
                continue;
            }
            if line.ends_with(':') || line.starts_with(".section") {
                let name = line.trim_end_matches(':').strip_prefix(".nv.constant2.");
                bank = name.map(str::to_owned);
            }
            if let Some(label) = line.strip_suffix(':').filter(|l| !l.contains(' ')) {
                labels.insert(label.to_owned(), lines.len());
            } else if let Some((address, rest)) =
                line.strip_prefix("/*").and_then(|l| l.split_once("*/"))
                && usize::from_str_radix(address, 16).is_ok()
                && let Some(rest) = rest.trim().strip_suffix(';')
            {
                lines.push(rest.trim().to_owned());
            }
        }
        let mut code = Vec::new();
        for line in lines {
            // What is not understood may never be reached.
            code.push(
                instruction(&line, &labels).unwrap_or_else(|why| Instruction {
                    guard: None,
                    name: why,
                    kinds: Vec::new(),
                    operands: Vec::new(),
                    text: line,
                }),
            );
        }
        let functions = labels
            .into_iter()
            .filter(|(label, _)| label.starts_with("osier_"))
            .collect();
        Module {
            code,
            functions,
            jumps,
        }
    }
}

fn instruction(line: &str, labels: &HashMap<String, usize>) -> Result<Instruction, String> {
    let (guard, rest) = match line.strip_prefix('@') {
        Some(rest) => {
            let (guard, rest) = rest.split_once(' ').ok_or("a guard alone")?;
            (Some(operand(guard, labels)?), rest.trim())
        }
        None => (None, line),
    };
    // Targets of a jump by a table, as a comment.
    let rest = rest.split("(*").next().unwrap_or(rest).trim();
    let (name, operands) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut kinds = name.split('.').map(str::to_owned);
    let name = kinds.next().unwrap_or_default();
    let operands = operands.replace(" `(", ", `(").replace(" -0x", ", -0x");
    let operands = operands.replace(",,", ",");
    let operands = operands
        .split(", ")
        .filter(|o| !o.trim_matches([',', ' ']).is_empty());
    Ok(Instruction {
        guard,
        name,
        kinds: kinds.collect(),
        operands: operands
            .map(|o| operand(o, labels))
            .collect::<Result<_, _>>()?,
        text: line.to_owned(),
    })
}

fn number(text: &str) -> Option<i64> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let value = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()? as i64,
        None => text.parse().ok()?,
    };
    Some(value.wrapping_mul(sign))
}

/// `R12` for prefix `R`; `RZ` is [`ZERO`], `PT` is [`TRUE`].
fn numbered(text: &str, prefix: &str) -> Option<u8> {
    match text.strip_prefix(prefix)? {
        "Z" => Some(ZERO),
        "T" => Some(TRUE),
        number => number.parse().ok(),
    }
}

const SPECIALS: [&str; 6] = [
    "PR",
    "SR_TID.X",
    "SR_CTAID.X",
    "SRZ",
    "SR_LANEID",
    "SR_CgaCtaId",
];

fn operand(text: &str, labels: &HashMap<String, usize>) -> Result<Operand, String> {
    let mut text = text.trim();
    let (mut negative, mut inverted) = (false, false);
    if let Some(found) = SPECIALS.iter().find(|special| **special == text) {
        let place = Place::Special(found);
        return Ok(Operand {
            place,
            negative,
            inverted,
        });
    }
    text = text.strip_suffix(".reuse").unwrap_or(text);
    if let Some(label) = text.strip_prefix("`(") {
        let label = label.trim_end_matches(')');
        let at = labels.get(label).ok_or("a label that is nowhere")?;
        let place = Place::Label(*at);
        return Ok(Operand {
            place,
            negative,
            inverted,
        });
    }
    let plain = text
        .strip_prefix('-')
        .is_none_or(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    if plain {
        if let Some(rest) = text.strip_prefix('-') {
            (negative, text) = (true, rest);
        }
        if let Some(rest) = text.strip_prefix(['~', '!']) {
            (inverted, text) = (true, rest);
        }
    }
    let text = text.strip_suffix(".reuse").unwrap_or(text);
    let bank = ["c[0x0][", "c[0x2]["]
        .iter()
        .position(|b| text.starts_with(b));
    let place = if let Some(bank) = bank {
        let rest = &text["c[0x0][".len()..];
        let inner = rest.trim_end_matches(']');
        let (mut register, mut offset) = (None, 0);
        for term in inner.split('+') {
            if let Some(r) = numbered(term, "UR") {
                register = Some((r, true));
            } else if let Some(r) = numbered(term, "R") {
                register = Some((r, false));
            } else if let Some(n) = number(term) {
                offset = n.wrapping_add(i64::from(offset)) as u32;
            } else {
                return Err(format!("constant {term}"));
            }
        }
        Place::Constant {
            bank: 2 * bank as u8,
            register,
            offset,
        }
    } else if let Some((_, address)) = text.split_once('[') {
        // A descriptor, if any, comes first.
        let address = address
            .rsplit_once('[')
            .map_or(address, |(_, address)| address);
        memory(address.trim_end_matches(']'))?
    } else {
        // 64-bit operands are named by their first register.
        let short = text
            .trim_end_matches(".64")
            .trim_end_matches(".H0_H0")
            .trim_end_matches(".U32");
        if let Some(n) = numbered(short, "UR") {
            Place::Uniform(n)
        } else if let Some(n) = numbered(short, "UP") {
            Place::UniformPredicate(n)
        } else if let Some(n) = numbered(short, "R") {
            Place::Register(n)
        } else if let Some(n) = numbered(short, "P") {
            Place::Predicate(n)
        } else if let Some(n) = numbered(short, "B") {
            Place::Barrier(n)
        } else if let Some(n) = number(short) {
            Place::Number(n as u64)
        } else if let Ok(n) = short.parse::<f64>() {
            Place::Half(n)
        } else {
            return Err(format!("operand {text}"));
        }
    };
    Ok(Operand {
        place,
        negative,
        inverted,
    })
}

fn memory(text: &str) -> Result<Place, String> {
    let (mut register, mut uniform, mut offset) = (None, None, 0);
    for term in text.split('+') {
        let short = term.trim_end_matches(".64").trim_end_matches(".U32");
        if let Some(n) = numbered(short, "UR") {
            uniform = Some(n);
        } else if let Some(n) = numbered(short, "R") {
            register = Some((n, term.ends_with(".64")));
        } else if let Some(n) = number(term) {
            offset += n;
        } else {
            return Err(format!("address {text}"));
        }
    }
    Ok(Place::Memory {
        register,
        uniform,
        offset,
    })
}
