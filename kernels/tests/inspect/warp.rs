//! Executes machine code of sm_90, a warp at a time, and counts what is issued.
//!
//! Only what these kernels are made of is known: all else is an error that names
//! the instruction. Lanes of a warp that went apart run in the order of their
//! places in the code and meet again at their barrier (BSSY, BSYNC), as compilers
//! arrange it.

use super::sass::{Instruction, Module, Operand, Place, TRUE, ZERO};
use std::collections::HashMap;

pub const LANES: usize = 32;

/// Global memory.
pub trait Memory {
    fn load(&mut self, at: u64, bytes: usize) -> u128;
    fn store(&mut self, at: u64, bytes: usize, value: u128);
    /// Whether this is what a kernel is to move, not a list.
    fn is_payload(&self, at: u64) -> bool;
}

/// What a launch gives to all warps.
pub struct Launch {
    /// Constant bank 0: dimensions, then the argument.
    pub constants: Vec<u8>,
    /// Bank 2.
    pub jumps: Vec<u8>,
    pub block: u32,
    pub shared: Vec<u8>,
}

impl Launch {
    pub fn new(threads: u32, blocks: u32, argument: &[u8]) -> Launch {
        let mut constants = vec![0; 0x210];
        for (at, value) in [(0, threads), (4, 1), (8, 1), (12, blocks), (16, 1), (20, 1)] {
            constants[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        constants.extend(argument);
        constants.resize(constants.len() + 64, 0);
        Launch {
            constants,
            jumps: Vec::new(),
            block: 0,
            shared: vec![0xa5; 48 << 10],
        }
    }

    fn constant(&self, bank: u8, at: u32) -> u32 {
        let at = at as usize;
        let bytes = if bank == 0 {
            &self.constants
        } else {
            &self.jumps
        };
        let bytes = bytes.get(at..at + 4);
        bytes.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
}

/// What a warp did.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    /// Instructions issued.
    pub issued: u64,
    /// By place in the code.
    pub by_place: HashMap<usize, u64>,
    /// Most loads of payload under way at once.
    pub loads: usize,
}

/// Why a warp stopped.
#[derive(Debug, PartialEq)]
pub enum Stop {
    Ended,
    Barrier,
    /// As many instructions as were allowed.
    Enough,
}

pub struct Warp {
    first_thread: u32,
    at: [usize; LANES],
    alive: u32,
    /// Lanes at a BSYNC, which wait for the others.
    blocked: u32,
    registers: Vec<[u32; LANES]>,
    predicates: [u32; 8],
    uniform: [u32; 256],
    uniform_predicates: [bool; 8],
    barriers: [u32; 16],
    /// Registers that loads of payload under way will write.
    pending: Vec<(u8, u8)>,
    pub counts: Counts,
}

impl Warp {
    pub fn new(entry: usize, number: u32) -> Warp {
        let mut predicates = [0; 8];
        predicates[TRUE as usize] = u32::MAX;
        let mut uniform_predicates = [false; 8];
        uniform_predicates[TRUE as usize] = true;
        Warp {
            first_thread: number * LANES as u32,
            at: [entry; LANES],
            alive: u32::MAX,
            blocked: 0,
            registers: vec![[0; LANES]; 256],
            predicates,
            uniform: [0; 256],
            uniform_predicates,
            barriers: [0; 16],
            pending: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Runs until the end, a barrier of the block, or so many instructions.
    pub fn run(
        &mut self,
        module: &Module,
        launch: &mut Launch,
        memory: &mut dyn Memory,
        most: u64,
    ) -> Result<Stop, String> {
        loop {
            let ready = self.alive & !self.blocked;
            if self.alive == 0 {
                return Ok(Stop::Ended);
            }
            if ready == 0 {
                return Err("all lanes wait for each other".into());
            }
            if self.counts.issued >= most {
                return Ok(Stop::Enough);
            }
            let place = lanes(ready).map(|lane| self.at[lane]).min().unwrap_or(0);
            let mut group = 0;
            for lane in lanes(ready) {
                group |= u32::from(self.at[lane] == place) << lane;
            }
            let instruction = module.code.get(place).ok_or("behind the code")?;
            self.counts.issued += 1;
            *self.counts.by_place.entry(place).or_default() += 1;
            let mut active = group;
            if let Some(guard) = &instruction.guard {
                active = 0;
                for lane in lanes(group) {
                    active |= u32::from(self.predicate(guard, lane)) << lane;
                }
            }
            for lane in lanes(group) {
                self.at[lane] = place + 1;
            }
            self.note_loads(instruction, active);
            let told = |why: String| format!("{}: {why}", instruction.text);
            if self.flow(instruction, group, active, place).map_err(told)? {
                if instruction.name == "BAR" {
                    return Ok(Stop::Barrier);
                }
                continue;
            }
            if active == 0 {
                continue;
            }
            if instruction.name == "VOTEU" {
                let votes = lanes(active).filter(|&lane| {
                    (instruction.operands.get(1)).is_some_and(|p| self.predicate(p, lane))
                });
                let count = votes.count() as u32;
                let any = if instruction.is("ALL") {
                    count == active.count_ones()
                } else {
                    count > 0
                };
                self.set_predicate(&instruction.operands[0], 0, any);
                continue;
            }
            if instruction.name.starts_with('U')
                || instruction.name == "S2UR"
                || instruction.name == "R2UR"
            {
                let lane = active.trailing_zeros() as usize;
                self.lane(instruction, lane, launch, memory).map_err(told)?;
                continue;
            }
            for lane in lanes(active) {
                self.lane(instruction, lane, launch, memory).map_err(told)?;
            }
        }
    }

    /// Keeps account of loads of payload that nothing has waited for.
    fn note_loads(&mut self, instruction: &Instruction, active: u32) {
        if active == 0 || self.pending.is_empty() {
            return;
        }
        let width = match instruction.name.as_str() {
            "STG" | "STS" => bytes_of(instruction).div_ceil(4) as u8,
            _ => 2,
        };
        let loads = instruction.name.starts_with("LD");
        let sources = if loads {
            0
        } else {
            usize::from(!instruction.name.starts_with("ST"))
        };
        for operand in instruction.operands.iter().skip(sources) {
            let (first, many) = match operand.place {
                Place::Register(r) if r != ZERO => (r, width),
                Place::Memory {
                    register: Some((r, _)),
                    ..
                } => (r, 2),
                _ => continue,
            };
            if loads && matches!(operand.place, Place::Register(_)) {
                continue;
            }
            let used = |&(at, n): &(u8, u8)| {
                first < at.saturating_add(n) && at < first.saturating_add(many)
            };
            if let Some(last) = self.pending.iter().rposition(used) {
                // Loads come back in the order in which they were issued.
                self.pending.drain(..=last);
            }
        }
    }

    /// Instructions that say which comes next. Whether this was one.
    fn flow(
        &mut self,
        i: &Instruction,
        group: u32,
        active: u32,
        place: usize,
    ) -> Result<bool, String> {
        match i.name.as_str() {
            "NOP" | "WARPSYNC" | "YIELD" => {}
            "EXIT" => {
                self.alive &= !active;
                self.release();
            }
            "BRA" => {
                let label = i.operands.iter().find_map(|o| match o.place {
                    Place::Label(at) => Some(at),
                    _ => None,
                });
                let to = label.ok_or("no label")?;
                for lane in lanes(active) {
                    let mut taken = true;
                    for operand in &i.operands {
                        taken &= match operand.place {
                            Place::Predicate(_) | Place::UniformPredicate(_) => {
                                self.predicate(operand, lane)
                            }
                            _ => true,
                        };
                    }
                    if taken {
                        self.at[lane] = to;
                    }
                }
            }
            // By a table: a distance from the next instruction, in bytes.
            "BRX" => {
                let (Some(Place::Register(r)), Some(Place::Number(ahead))) = (
                    i.operands.first().map(|o| o.place),
                    i.operands.get(1).map(|o| o.place),
                ) else {
                    return Err("no table".into());
                };
                for lane in lanes(active) {
                    let bytes = i64::from(self.register(r, lane) as i32) + ahead as i64;
                    let to = place as i64 + 1 + bytes / 16;
                    self.at[lane] = usize::try_from(to).map_err(|_| "no such place")?;
                }
            }
            "CALL" => {
                let Some(Place::Label(to)) = i.operands.last().map(|o| o.place) else {
                    return Err("no label".into());
                };
                for lane in lanes(active) {
                    self.at[lane] = to;
                }
            }
            "RET" => {
                // The register holds the distance from the function that is named.
                let (Some(Place::Register(r)), Some(Place::Label(base))) = (
                    i.operands.first().map(|o| o.place),
                    i.operands.last().map(|o| o.place),
                ) else {
                    return Err("no way back".into());
                };
                for lane in lanes(active) {
                    self.at[lane] = base + self.registers[r as usize][lane] as usize / 16;
                }
            }
            "BSSY" => {
                if let Some(Place::Barrier(b)) = i.operands.first().map(|o| o.place) {
                    self.barriers[b as usize] = group;
                }
            }
            "BREAK" => {
                if let Some(Place::Barrier(b)) = i.operands.last().map(|o| o.place) {
                    self.barriers[b as usize] &= !active;
                    self.release();
                }
            }
            "BSYNC" => {
                for lane in lanes(active) {
                    self.at[lane] = place;
                }
                self.blocked |= active;
                let Some(Place::Barrier(b)) = i.operands.first().map(|o| o.place) else {
                    return Err("no barrier".into());
                };
                self.meet(b, place);
            }
            "BAR" => {
                if group != self.alive {
                    return Err("a barrier that some lanes miss".into());
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn meet(&mut self, barrier: u8, place: usize) {
        let wanted = self.barriers[barrier as usize] & self.alive;
        let mut here = 0;
        for lane in lanes(self.blocked) {
            here |= u32::from(self.at[lane] == place) << lane;
        }
        if wanted & !here == 0 {
            for lane in lanes(here) {
                self.at[lane] = place + 1;
            }
            self.blocked &= !here;
        }
    }

    /// Lanes that ended or broke out keep nobody waiting: whoever waits asks again.
    fn release(&mut self) {
        self.blocked = 0;
    }

    fn predicate(&self, operand: &Operand, lane: usize) -> bool {
        let value = match operand.place {
            Place::Predicate(p) => self.predicates[p as usize] >> lane & 1 == 1,
            Place::UniformPredicate(p) => self.uniform_predicates[p as usize],
            _ => false,
        };
        value != operand.inverted
    }

    fn set_predicate(&mut self, operand: &Operand, lane: usize, value: bool) {
        match operand.place {
            Place::Predicate(p) if p != TRUE => {
                let mask = &mut self.predicates[p as usize];
                *mask = *mask & !(1 << lane) | u32::from(value) << lane;
            }
            Place::UniformPredicate(p) if p != TRUE => self.uniform_predicates[p as usize] = value,
            _ => {}
        }
    }

    fn register(&self, r: u8, lane: usize) -> u32 {
        if r == ZERO {
            0
        } else {
            self.registers[r as usize][lane]
        }
    }

    fn uniform(&self, r: u8) -> u32 {
        if r == ZERO {
            0
        } else {
            self.uniform[r as usize]
        }
    }

    fn index(&self, register: Option<(u8, bool)>, lane: usize) -> u32 {
        match register {
            None => 0,
            Some((r, true)) => self.uniform(r),
            Some((r, false)) => self.register(r, lane),
        }
    }

    /// 32 bits, before `-` and `~`.
    fn raw(
        &self,
        operand: &Operand,
        lane: usize,
        launch: &Launch,
        word: u32,
    ) -> Result<u32, String> {
        let next = |r: u8| if r == ZERO { r } else { r + word as u8 };
        Ok(match operand.place {
            Place::Register(r) => self.register(next(r), lane),
            Place::Uniform(r) => self.uniform(next(r)),
            Place::Number(n) => match word {
                0 => n as u32,
                // A number of 32 bits, whose sign goes on.
                _ => ((n as u32 as i32) >> 31) as u32,
            },
            Place::Constant {
                bank,
                register,
                offset,
            } => {
                let behind = self.index(register, lane).wrapping_add(offset);
                launch.constant(bank, behind.wrapping_add(4 * word))
            }
            other => return Err(format!("a number is wanted, not {other:?}")),
        })
    }

    fn value(&self, operand: &Operand, lane: usize, launch: &Launch) -> Result<u32, String> {
        let raw = self.raw(operand, lane, launch, 0)?;
        let value = if operand.inverted { !raw } else { raw };
        Ok(if operand.negative {
            value.wrapping_neg()
        } else {
            value
        })
    }

    fn pair(&self, operand: &Operand, lane: usize, launch: &Launch) -> Result<u64, String> {
        let low = self.raw(operand, lane, launch, 0)?;
        let high = self.raw(operand, lane, launch, 1)?;
        let value = u64::from(low) | u64::from(high) << 32;
        let value = if operand.inverted { !value } else { value };
        Ok(if operand.negative {
            value.wrapping_neg()
        } else {
            value
        })
    }

    fn set(&mut self, operand: &Operand, lane: usize, value: u32) -> Result<(), String> {
        self.set_at(operand, lane, 0, value)
    }

    fn set_at(
        &mut self,
        operand: &Operand,
        lane: usize,
        word: u8,
        value: u32,
    ) -> Result<(), String> {
        match operand.place {
            Place::Register(ZERO) | Place::Uniform(ZERO) => {}
            Place::Register(r) => self.registers[(r + word) as usize][lane] = value,
            Place::Uniform(r) => self.uniform[(r + word) as usize] = value,
            other => return Err(format!("a register is wanted, not {other:?}")),
        }
        Ok(())
    }

    fn set_pair(&mut self, operand: &Operand, lane: usize, value: u64) -> Result<(), String> {
        self.set_at(operand, lane, 0, value as u32)?;
        self.set_at(operand, lane, 1, (value >> 32) as u32)
    }

    fn address(&self, operand: &Operand, lane: usize) -> Result<u64, String> {
        let Place::Memory {
            register,
            uniform,
            offset,
        } = operand.place
        else {
            return Err("no address".into());
        };
        let mut at = offset as u64;
        let wide = register.is_none_or(|(_, wide)| wide);
        if let Some((r, wide)) = register
            && r != ZERO
        {
            at = at.wrapping_add(u64::from(self.register(r, lane)));
            if wide {
                at = at.wrapping_add(u64::from(self.register(r + 1, lane)) << 32);
            }
        }
        if let Some(r) = uniform
            && r != ZERO
        {
            at = at.wrapping_add(u64::from(self.uniform(r)));
            if wide {
                at = at.wrapping_add(u64::from(self.uniform(r + 1)) << 32);
            }
        }
        Ok(at)
    }

    /// One instruction for one lane.
    #[allow(clippy::too_many_lines)]
    fn lane(
        &mut self,
        i: &Instruction,
        lane: usize,
        launch: &mut Launch,
        memory: &mut dyn Memory,
    ) -> Result<(), String> {
        let o = &i.operands;
        let name = match i.name.as_str() {
            // The warp's own arithmetic is that of lanes.
            "UIADD3" => "IADD3",
            "UIMAD" => "IMAD",
            "ULOP3" => "LOP3",
            "USHF" => "SHF",
            "UISETP" => "ISETP",
            "USEL" | "FSEL" => "SEL",
            "ULEA" => "LEA",
            "UPRMT" => "PRMT",
            "UPLOP3" => "PLOP3",
            "UMOV" | "R2UR" => "MOV",
            "ULDC" => "LDC",
            "S2UR" => "S2R",
            // Of memory that may be shared; here it is not.
            "LD" => "LDG",
            "ST" => "STG",
            other => other,
        };
        // Predicates behind the first register or before it are results; the rest
        // are what comes in.
        let is_predicate =
            |o: &Operand| matches!(o.place, Place::Predicate(_) | Place::UniformPredicate(_));
        match name {
            "MOV" => {
                let value = self.value(&o[1], lane, launch)?;
                self.set(&o[0], lane, value)
            }
            "HFMA2" => {
                let half = |o: &Operand| match o.place {
                    Place::Half(n) => Ok(half_bits(if o.negative { -n } else { n })),
                    Place::Number(0) => Ok(0),
                    Place::Number(n) => Ok(half_bits(n as i64 as f64)),
                    _ => Err("halves that are computed".to_owned()),
                };
                let [.., high, low] = &o[..] else {
                    return Err("two halves".into());
                };
                let value = u32::from(half(high)?) << 16 | u32::from(half(low)?);
                self.set(&o[0], lane, value)
            }
            "S2R" | "CS2R" => {
                let value = match o[1].place {
                    Place::Special("SR_TID.X") => self.first_thread + lane as u32,
                    Place::Special("SR_LANEID") => lane as u32,
                    Place::Special("SR_CTAID.X") => launch.block,
                    Place::Special("SRZ" | "SR_CgaCtaId") => 0,
                    _ => return Err("a special register".into()),
                };
                match name {
                    "CS2R" if !i.is("32") => self.set_pair(&o[0], lane, value.into()),
                    _ => self.set(&o[0], lane, value),
                }
            }
            "IMAD" if i.is("WIDE") => {
                let carry = usize::from(is_predicate(&o[1]));
                let (a, b) = (&o[1 + carry], &o[2 + carry]);
                let (a, b) = (self.value(a, lane, launch)?, self.value(b, lane, launch)?);
                let c = self.pair(&o[3 + carry], lane, launch)?;
                let product = match i.is("U32") {
                    true => u64::from(a) * u64::from(b),
                    false => (i64::from(a as i32) * i64::from(b as i32)) as u64,
                };
                let extra = match i.is("X") {
                    true => u64::from(self.predicate(&o[4 + carry], lane)),
                    false => 0,
                };
                let sum = u128::from(product) + u128::from(c) + u128::from(extra);
                if carry == 1 {
                    self.set_predicate(&o[1], lane, sum >> 64 != 0);
                }
                self.set_pair(&o[0], lane, sum as u64)
            }
            "IMAD" if i.is("HI") => {
                let (a, b) = (
                    self.value(&o[1], lane, launch)?,
                    self.value(&o[2], lane, launch)?,
                );
                let c = self.pair(&o[3], lane, launch)?;
                let product = match i.is("U32") {
                    true => u64::from(a) * u64::from(b),
                    false => (i64::from(a as i32) * i64::from(b as i32)) as u64,
                };
                self.set(&o[0], lane, (product.wrapping_add(c) >> 32) as u32)
            }
            "IMAD" => {
                let a = self.value(&o[1], lane, launch)?;
                let b = self.value(&o[2], lane, launch)?;
                let c = self.value(&o[3], lane, launch)?;
                let extra = i.is("X") && self.predicate(&o[4], lane);
                let value = a.wrapping_mul(b).wrapping_add(c).wrapping_add(extra.into());
                self.set(&o[0], lane, value)
            }
            "VIADD" => {
                let (a, b) = (
                    self.value(&o[1], lane, launch)?,
                    self.value(&o[2], lane, launch)?,
                );
                self.set(&o[0], lane, a.wrapping_add(b))
            }
            "IADD3" => {
                let out = o[1..].iter().take_while(|o| is_predicate(o)).count();
                let mut sum = 0u64;
                for operand in &o[1 + out..4 + out] {
                    let raw = self.raw(operand, lane, launch, 0)?;
                    sum += match (operand.negative, operand.inverted) {
                        (true, _) => u64::from(!raw) + 1,
                        (_, true) => u64::from(!raw),
                        _ => u64::from(raw),
                    };
                }
                if i.is("X") {
                    for operand in &o[4 + out..] {
                        sum += u64::from(self.predicate(operand, lane));
                    }
                }
                for (k, operand) in o[1..1 + out].iter().enumerate() {
                    self.set_predicate(operand, lane, sum >> 32 > k as u64);
                }
                self.set(&o[0], lane, sum as u32)
            }
            "LEA" => {
                let out = o[1..].iter().take_while(|o| is_predicate(o)).count();
                let a = self.value(&o[1 + out], lane, launch)?;
                let raw = self.raw(&o[2 + out], lane, launch, 0)?;
                let b = match (o[2 + out].negative, o[2 + out].inverted) {
                    (true, _) => u64::from(!raw) + 1,
                    (_, true) => u64::from(!raw),
                    _ => u64::from(raw),
                };
                let mut next = 3 + out;
                let high = if i.is("SX32") {
                    ((a as i32) >> 31) as u32
                } else if i.is("HI") {
                    next += 1;
                    self.value(&o[next - 1], lane, launch)?
                } else {
                    0
                };
                let shift = self.value(&o[next], lane, launch)? & 31;
                let wide = (u64::from(high) << 32 | u64::from(a)) << shift;
                let part = if i.is("HI") {
                    (wide >> 32) as u32
                } else {
                    wide as u32
                };
                let mut sum = u64::from(part) + b;
                if i.is("X") {
                    sum += u64::from(self.predicate(&o[next + 1], lane));
                }
                for operand in &o[1..1 + out] {
                    self.set_predicate(operand, lane, sum >> 32 != 0);
                }
                self.set(&o[0], lane, sum as u32)
            }
            "LOP3" => {
                let out = usize::from(is_predicate(&o[0]));
                let a = self.value(&o[1 + out], lane, launch)?;
                let b = self.value(&o[2 + out], lane, launch)?;
                let c = self.value(&o[3 + out], lane, launch)?;
                let table = self.value(&o[4 + out], lane, launch)?;
                let value = lop3(a, b, c, table);
                if out == 1 {
                    let also = o.get(5 + out).is_some_and(|o| self.predicate(o, lane));
                    self.set_predicate(&o[0], lane, value != 0 || also);
                }
                self.set(&o[out], lane, value)
            }
            "PLOP3" => {
                let bit = |warp: &Warp, k: usize| u32::from(warp.predicate(&o[k], lane));
                let index = bit(self, 2) << 2 | bit(self, 3) << 1 | bit(self, 4);
                for (k, table) in [(0, 5), (1, 6)] {
                    let table = self.value(&o[table], lane, launch)?;
                    let value = table >> index & 1 == 1;
                    self.set_predicate(&o[k], lane, value);
                }
                Ok(())
            }
            // All predicates as bits of a register, and back.
            "P2R" => {
                let (a, mask) = (
                    self.value(&o[2], lane, launch)?,
                    self.value(&o[3], lane, launch)?,
                );
                let mut bits = 0;
                for (k, predicate) in self.predicates.iter().enumerate() {
                    bits |= (predicate >> lane & 1) << k;
                }
                self.set(&o[0], lane, a & !mask | bits & mask)
            }
            "R2P" => {
                let (a, mask) = (
                    self.value(&o[1], lane, launch)?,
                    self.value(&o[2], lane, launch)?,
                );
                for k in 0..TRUE {
                    if mask >> k & 1 == 1 {
                        let bit = a >> k & 1;
                        let predicate = &mut self.predicates[k as usize];
                        *predicate = *predicate & !(1 << lane) | bit << lane;
                    }
                }
                Ok(())
            }
            "SHF" => {
                let a = self.value(&o[1], lane, launch)?;
                let shift = self.value(&o[2], lane, launch)?;
                let c = self.value(&o[3], lane, launch)?;
                let both = u64::from(c) << 32 | u64::from(a);
                let wide = i.is("U64") || i.is("S64");
                let most = if wide { 64 } else { 32 };
                let shift = if i.is("W") {
                    shift % most
                } else {
                    shift.min(most)
                };
                let value = match (i.is("L"), i.is("HI")) {
                    (true, high) => {
                        let shifted = if shift == 64 { 0 } else { both << shift };
                        if high || (wide && i.is("HI")) {
                            (shifted >> 32) as u32
                        } else {
                            shifted as u32
                        }
                    }
                    (false, true) if i.is("S32") => ((c as i32) >> shift.min(31)) as u32,
                    (false, true) => {
                        if shift >= 32 {
                            0
                        } else {
                            c >> shift
                        }
                    }
                    (false, false) => {
                        let shifted = match i.is("S64") {
                            true => ((both as i64) >> shift.min(63)) as u64,
                            false => {
                                if shift == 64 {
                                    0
                                } else {
                                    both >> shift
                                }
                            }
                        };
                        shifted as u32
                    }
                };
                self.set(&o[0], lane, value)
            }
            "ISETP" => {
                let a = self.value(&o[2], lane, launch)?;
                let b = self.value(&o[3], lane, launch)?;
                let less = if i.is("U32") {
                    a < b
                } else {
                    (a as i32) < b as i32
                };
                let lower = i.is("EX") && self.predicate(&o[5], lane);
                let equal = a == b;
                let extended = i.is("EX");
                let result = match i.kinds[0].as_str() {
                    "LT" => less || (equal && extended && lower),
                    "LE" => less || (equal && (!extended || lower)),
                    "GT" => !less && !equal || (equal && extended && lower),
                    "GE" => !less && !equal || (equal && (!extended || lower)),
                    "EQ" => equal && (!extended || lower),
                    "NE" => !equal || (extended && lower),
                    _ => return Err("a comparison".into()),
                };
                let with = self.predicate(&o[4], lane);
                let join = |value: bool| {
                    if i.is("OR") {
                        value || with
                    } else if i.is("XOR") {
                        value != with
                    } else {
                        value && with
                    }
                };
                self.set_predicate(&o[0], lane, join(result));
                self.set_predicate(&o[1], lane, join(!result));
                Ok(())
            }
            "SEL" => {
                let first = self.predicate(&o[3], lane);
                let value = self.value(&o[if first { 1 } else { 2 }], lane, launch)?;
                self.set(&o[0], lane, value)
            }
            "VIMNMX" | "IMNMX" | "UIMNMX" => {
                let (a, b) = (
                    self.value(&o[1], lane, launch)?,
                    self.value(&o[2], lane, launch)?,
                );
                let smaller = if i.is("U32") {
                    a < b
                } else {
                    (a as i32) < b as i32
                };
                let least = self.predicate(&o[3], lane);
                self.set(&o[0], lane, if smaller == least { a } else { b })
            }
            // The least or greatest of a sum and a number.
            "VIADDMNMX" => {
                let sum = self.value(&o[1], lane, launch)?;
                let sum = sum.wrapping_add(self.value(&o[2], lane, launch)?);
                let other = self.value(&o[3], lane, launch)?;
                let smaller = if i.is("U32") {
                    sum < other
                } else {
                    (sum as i32) < other as i32
                };
                let least = self.predicate(&o[4], lane);
                self.set(&o[0], lane, if smaller == least { sum } else { other })
            }
            "PRMT" => {
                let a = self.value(&o[1], lane, launch)?;
                let select = self.value(&o[2], lane, launch)?;
                let c = self.value(&o[3], lane, launch)?;
                let both = u64::from(c) << 32 | u64::from(a);
                let mut value = 0;
                for k in 0..4 {
                    let nibble = select >> (4 * k) & 15;
                    let byte = (both >> (8 * (nibble & 7))) as u8;
                    let byte = match nibble & 8 {
                        0 => byte,
                        _ => ((byte as i8) >> 7) as u8,
                    };
                    value |= u32::from(byte) << (8 * k);
                }
                self.set(&o[0], lane, value)
            }
            "I2F" => {
                let value = match i.is("U64") {
                    true => self.pair(&o[1], lane, launch)?,
                    false => self.value(&o[1], lane, launch)?.into(),
                };
                let mut float = value as f32;
                if i.is("RP") && (float as f64) < value as f64 {
                    float = float.next_up();
                }
                self.set(&o[0], lane, float.to_bits())
            }
            "FADD" => {
                let float = |o: &Operand| {
                    let bits = self.raw(o, lane, launch, 0)?;
                    Ok::<_, String>(f32::from_bits(bits ^ u32::from(o.negative) << 31))
                };
                let sum = float(&o[1])? + float(&o[2])?;
                self.set(&o[0], lane, sum.to_bits())
            }
            "DADD" => {
                let double = |o: &Operand| {
                    let low = self.raw(o, lane, launch, 0)?;
                    let high = self.raw(o, lane, launch, 1)? ^ u32::from(o.negative) << 31;
                    Ok::<_, String>(f64::from_bits(u64::from(high) << 32 | u64::from(low)))
                };
                let sum = double(&o[1])? + double(&o[2])?;
                self.set_pair(&o[0], lane, sum.to_bits())
            }
            "MUFU" if i.is("RCP") => {
                let value = f32::from_bits(self.value(&o[1], lane, launch)?);
                self.set(&o[0], lane, (1.0 / value).to_bits())
            }
            "F2I" => {
                let value = f32::from_bits(self.value(&o[1], lane, launch)?);
                match i.is("U64") {
                    true => self.set_pair(&o[0], lane, value as u64),
                    false => self.set(&o[0], lane, value as u32),
                }
            }
            "LDC" => {
                let Place::Constant {
                    bank,
                    register,
                    offset,
                } = o[1].place
                else {
                    return Err("no constant".into());
                };
                let at = self.index(register, lane).wrapping_add(offset);
                match bytes_of(i) {
                    8 => {
                        self.set_at(&o[0], lane, 0, launch.constant(bank, at))?;
                        self.set_at(&o[0], lane, 1, launch.constant(bank, at + 4))
                    }
                    4 => self.set(&o[0], lane, launch.constant(bank, at)),
                    2 => {
                        let word = launch.constant(bank, at & !3);
                        self.set(&o[0], lane, word >> (8 * (at & 2)) & 0xffff)
                    }
                    _ => Err("a constant of one byte".into()),
                }
            }
            "LDG" | "LDS" => {
                let at = self.address(&o[1], lane)?;
                let bytes = bytes_of(i);
                aligned(at, bytes)?;
                let value = match name {
                    "LDG" => memory.load(at, bytes),
                    _ => {
                        let from = launch.shared.get(at as usize..at as usize + bytes);
                        let mut value = [0; 16];
                        value[..bytes].copy_from_slice(from.ok_or("no such shared memory")?);
                        u128::from_le_bytes(value)
                    }
                };
                if name == "LDG"
                    && memory.is_payload(at)
                    && let Place::Register(first) = o[0].place
                {
                    let load = (first, bytes.div_ceil(4) as u8);
                    if self.pending.last() != Some(&load) {
                        self.pending.push(load);
                    }
                    self.counts.loads = self.counts.loads.max(self.pending.len());
                }
                for word in 0..bytes.div_ceil(4) {
                    self.set_at(&o[0], lane, word as u8, (value >> (32 * word)) as u32)?;
                }
                Ok(())
            }
            "STG" | "STS" => {
                let at = self.address(&o[0], lane)?;
                let bytes = bytes_of(i);
                aligned(at, bytes)?;
                let mut value = 0u128;
                if let Place::Register(first) = o[1].place {
                    for word in 0..bytes.div_ceil(4) {
                        let r = if first == ZERO {
                            ZERO
                        } else {
                            first + word as u8
                        };
                        value |= u128::from(self.register(r, lane)) << (32 * word);
                    }
                }
                match name {
                    "STG" => memory.store(at, bytes, value),
                    _ => {
                        let to = launch.shared.get_mut(at as usize..at as usize + bytes);
                        let to = to.ok_or("no such shared memory")?;
                        to.copy_from_slice(&value.to_le_bytes()[..bytes]);
                    }
                }
                Ok(())
            }
            _ => Err("not known here".into()),
        }
    }
}

fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let mut value = 0;
    for index in 0..8 {
        if table >> index & 1 == 1 {
            let x = if index & 4 != 0 { a } else { !a };
            let y = if index & 2 != 0 { b } else { !b };
            let z = if index & 1 != 0 { c } else { !c };
            value |= x & y & z;
        }
    }
    value
}

fn bytes_of(i: &Instruction) -> usize {
    if i.is("128") {
        16
    } else if i.is("64") {
        8
    } else if i.is("U16") || i.is("S16") || i.is("16") {
        2
    } else if i.is("U8") || i.is("S8") || i.is("8") {
        1
    } else {
        4
    }
}

fn aligned(at: u64, bytes: usize) -> Result<(), String> {
    match at.is_multiple_of(bytes as u64) {
        true => Ok(()),
        false => Err(format!("address 0x{at:x} is no multiple of {bytes}")),
    }
}

/// A number as binary16; those of instructions are exact.
fn half_bits(value: f64) -> u16 {
    let sign = u16::from(value.is_sign_negative()) << 15;
    let value = value.abs();
    if value == 0.0 {
        return sign;
    }
    if value.is_nan() {
        return sign | 0x7fff;
    }
    if value.is_infinite() {
        return sign | 0x7c00;
    }
    let small = value / (-24f64).exp2();
    if small < 1024.0 {
        return sign | small as u16;
    }
    let exponent = value.log2().floor();
    let mantissa = (value / exponent.exp2() - 1.0) * 1024.0;
    sign | (((exponent as i32 + 15) as u16) << 10) | mantissa.round() as u16
}
