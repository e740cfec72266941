//! DSCP and TTL of the hosts' segments, as the kernel sees them (frame.md section 8).
//!
//! After a TCP connection's handshake, no socket option reveals the marks (IP_PKTOPTIONS, ip(7)). So a socket filter in eBPF writes the
//! marks of each segment into a word of an array that is mapped into this process; reading the word costs no system call. The filter
//! belongs to the socket and ends with it. The socket's cookie (SO_COOKIE, socket(7)) selects the word, which also contains the cookie: if
//! two connections share a word, each sees only its own marks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use socket2::SockRef;
use sos_wire::Marks;

use crate::transport::bpf::{Instruction, Words, load_filter};
use crate::transport::sockopt::{Gate, attach_filter, cookie, handshake_options, set_receive_ttl};

/// Number of words: cookies are consecutive, so connections share a word only if that many sockets were opened between them. The first
/// number needs 1 MiB; the second is for kernels that bound this memory (RLIMIT_MEMLOCK of 64 KiB, before Linux 5.11).
const WORDS: [u32; 2] = [1 << 17, 1 << 12];
/// Bits of the cookie that a word contains, above the bits of the marks.
const COOKIE: u64 = (1 << 48) - 1;

/// Offsets in an IPv4 header (RFC 791, 3.1), and the number of header bytes read.
const DSCP_AT: i16 = 1;
const TTL_AT: i16 = 8;
const HEADER: i32 = 12;
/// The other two bits of this byte are ECN (RFC 3168).
const DSCP_MASK: i32 = 0xfc;

/// The filters, one for each gate, and the marks they have seen.
#[derive(Debug)]
pub struct SegmentMarks {
    words: Words,
    programs: [(Gate, OwnedFd); 3],
}

impl SegmentMarks {
    /// Loads the filters.
    ///
    /// # Errors
    /// Error of the kernel: BPF or SYS_ADMIN is needed, and Linux 5.5.
    pub fn new() -> io::Result<Self> {
        let words = Words::new(WORDS[0]).or_else(|_| Words::new(WORDS[1]))?;
        let load = |gate| Ok::<_, io::Error>((gate, load_filter(&program(gate, &words))?));
        let programs = [load(Gate::Open)?, load(Gate::NoProbes)?, load(Gate::Closed)?];
        Ok(Self { words, programs })
    }

    /// Watches the segments of a connection from now on. Connections accepted from a watched listener inherit the filter, and also keep the
    /// marks of their handshake ([`first_marks`]).
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn watch(&self, socket: &impl AsFd) -> io::Result<()> {
        self.attach(socket, Gate::Open)
    }

    /// Marks of the last segment of a watched connection.
    pub fn last(&self, socket: &impl AsFd) -> Option<Marks> {
        self.of(cookie(socket).ok()?)
    }

    /// Watches segments, and filters them by the gate.
    pub(crate) fn attach(&self, socket: &impl AsFd, gate: Gate) -> io::Result<()> {
        let program = self.programs.iter().find(|(of, _)| *of == gate);
        program.map_or(Ok(()), |(_, program)| attach_filter(socket, program.as_raw_fd()))
    }

    /// Marks of the last segment that the socket with this cookie has received.
    pub(crate) fn of(&self, cookie: u64) -> Option<Marks> {
        let word = self.words.get(usize::try_from(cookie).ok()? & (self.words.count() - 1));
        let [dscp, ttl] = (word as u16).to_be_bytes();
        (word >> Marks::BITS == cookie & COOKIE).then_some(Marks { dscp: dscp >> 2, ttl })
    }
}

/// One connection's marks.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    filters: Arc<SegmentMarks>,
    cookie: u64,
}

impl Watched {
    pub(crate) fn new(filters: &Arc<SegmentMarks>, socket: &impl AsFd) -> io::Result<Self> {
        filters.watch(socket)?;
        Ok(Self { filters: Arc::clone(filters), cookie: cookie(socket)? })
    }

    pub(crate) fn marks(&self) -> Option<Marks> {
        self.filters.of(self.cookie)
    }

    pub(crate) fn set_gate(&self, socket: &impl AsFd, gate: Gate) -> io::Result<()> {
        self.filters.attach(socket, gate)
    }
}

/// Makes accepted connections keep the marks of their handshake.
///
/// # Errors
/// Error of the kernel.
pub fn keep_first_marks(listener: &impl AsFd) -> io::Result<()> {
    SockRef::from(&listener.as_fd()).set_recv_tos_v4(true)?;
    set_receive_ttl(listener)
}

/// DSCP and TTL of the segment that completed an accepted connection's handshake.
pub fn first_marks(socket: &impl AsFd) -> Marks {
    handshake_options(socket).map_or(Marks::default(), |options| {
        let byte = |kind| options.iter().find(|(of, _)| *of == kind).map_or(0, |(_, value)| *value);
        Marks { dscp: byte(libc::IP_TOS) >> 2, ttl: byte(libc::IP_TTL) }
    })
}

/// Sets the marks of the segments that a socket sends from now on; an unknown TTL is left unchanged.
///
/// # Errors
/// Error of the kernel.
pub fn set_marks(socket: &SockRef<'_>, marks: Marks) -> io::Result<()> {
    socket.set_tos_v4(u32::from(marks.dscp) << 2)?;
    if marks.ttl == 0 { Ok(()) } else { socket.set_ttl_v4(marks.ttl.into()) }
}

/// Registers: results, arguments of helpers, values that survive helper calls, and the end of the stack.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const CONTEXT: u8 = 6;
const WORD: u8 = 7;
const STACK: u8 = 10;
/// Offsets of the header and the key on the stack.
const HEADER_ON_STACK: i16 = -16;
const KEY_ON_STACK: i16 = -4;
/// Helpers (linux/bpf.h).
const MAP_LOOKUP_ELEM: i32 = 1;
const GET_SOCKET_COOKIE: i32 = 46;
const SKB_LOAD_BYTES_RELATIVE: i32 = 68;
const FROM_NETWORK_HEADER: i32 = 1;
/// Lengths and flags in a TCP header (RFC 9293, 3.1).
const TCP_LENGTH_AT: i32 = 12;
const TCP_FLAGS_AT: i32 = 13;
const RST: i32 = 0x04;
const FIN_SYN_RST: i32 = 0x07;

const fn op(code: u32, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction::new(code as u8, (to, from), offset, immediate)
}

const fn set(to: u8, immediate: i32) -> Instruction {
    op(ALU64 | MOV, to, 0, 0, immediate)
}

const fn copy(to: u8, from: u8) -> Instruction {
    op(ALU64 | MOV | libc::BPF_X, to, from, 0, 0)
}

const fn alu(code: u32, to: u8, immediate: i32) -> Instruction {
    op(ALU64 | code, to, 0, 0, immediate)
}

const fn call(helper: i32) -> Instruction {
    op(libc::BPF_JMP | CALL, 0, 0, 0, helper)
}

/// Codes of eBPF that classic BPF does not have.
const ALU64: u32 = 0x07;
const MOV: u32 = 0xb0;
const CALL: u32 = 0x80;
const EXIT: u32 = 0x90;
const DOUBLE_WORD: u32 = 0x18;
const JUMP_UNEQUAL: u32 = 0x50;
const MAP_DESCRIPTOR: u8 = 1;

/// Program that notes the marks of a segment, and filters it by the gate.
fn program(gate: Gate, words: &Words) -> Vec<Instruction> {
    let mut program = note(words);
    let end = program.len();
    // A segment whose marks cannot be noted is still filtered.
    for (at, instruction) in program.iter_mut().enumerate() {
        if instruction.offset == TO_GATE {
            instruction.offset = i16::try_from(end - at - 1).expect("a few instructions");
        }
    }
    program.extend(let_through(gate));
    program
}

/// Placeholder for the jump to the first instruction after [`note`].
const TO_GATE: i16 = i16::MAX;

fn note(words: &Words) -> Vec<Instruction> {
    let mask = i32::try_from(words.count() - 1).expect("as made here");
    let byte = |to, at| op(libc::BPF_LDX | libc::BPF_MEM | libc::BPF_B, to, STACK, HEADER_ON_STACK + at, 0);
    let or = |from| op(ALU64 | libc::BPF_OR | libc::BPF_X, WORD, from, 0, 0);
    vec![
        copy(CONTEXT, R1),
        call(GET_SOCKET_COOKIE),
        copy(WORD, R0),
        copy(R1, CONTEXT),
        set(R2, 0),
        copy(R3, STACK),
        alu(libc::BPF_ADD, R3, HEADER_ON_STACK.into()),
        set(R4, HEADER),
        set(R5, FROM_NETWORK_HEADER),
        call(SKB_LOAD_BYTES_RELATIVE),
        op(libc::BPF_JMP | JUMP_UNEQUAL, R0, 0, TO_GATE, 0),
        copy(R1, WORD),
        alu(libc::BPF_AND, R1, mask),
        op(libc::BPF_STX | libc::BPF_MEM | libc::BPF_W, STACK, R1, KEY_ON_STACK, 0),
        alu(libc::BPF_LSH, WORD, Marks::BITS.cast_signed()),
        byte(R1, DSCP_AT),
        alu(libc::BPF_AND, R1, DSCP_MASK),
        alu(libc::BPF_LSH, R1, 8),
        or(R1),
        byte(R1, TTL_AT),
        or(R1),
        op(libc::BPF_LD | libc::BPF_IMM | DOUBLE_WORD, R1, MAP_DESCRIPTOR, 0, words.map()),
        op(0, 0, 0, 0, 0),
        copy(R2, STACK),
        alu(libc::BPF_ADD, R2, KEY_ON_STACK.into()),
        call(MAP_LOOKUP_ELEM),
        op(libc::BPF_JMP | libc::BPF_JEQ, R0, 0, TO_GATE, 0),
        // The word is mostly unchanged: skip the write, so that no other processor's cache is invalidated.
        op(libc::BPF_LDX | libc::BPF_MEM | DOUBLE_WORD, R1, R0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_X, R1, WORD, TO_GATE, 0),
        op(libc::BPF_STX | libc::BPF_MEM | DOUBLE_WORD, R0, WORD, 0, 0),
    ]
}

/// Same filter as `sockopt` attaches to sockets without these programs.
fn let_through(gate: Gate) -> Vec<Instruction> {
    let load_byte = |at| op(libc::BPF_LD | libc::BPF_ABS | libc::BPF_B, 0, 0, 0, at);
    let jump = |code, to, from, offset| op(libc::BPF_JMP | code, to, from, offset, 0);
    let (keep, drop) = (set(R0, i32::MAX), set(R0, 0));
    let exit = op(libc::BPF_JMP | EXIT, 0, 0, 0, 0);
    match gate {
        Gate::Open => vec![keep, exit],
        Gate::Closed => vec![
            load_byte(TCP_FLAGS_AT),
            alu(libc::BPF_AND, R0, RST),
            jump(libc::BPF_JEQ, R0, 0, 1),
            keep,
            exit,
        ],
        Gate::NoProbes => vec![
            load_byte(TCP_FLAGS_AT),
            alu(libc::BPF_AND, R0, FIN_SYN_RST),
            jump(JUMP_UNEQUAL, R0, 0, 7),
            load_byte(TCP_LENGTH_AT),
            alu(libc::BPF_RSH, R0, 4),
            alu(libc::BPF_LSH, R0, 2),
            op(libc::BPF_LDX | libc::BPF_MEM | libc::BPF_W, R1, CONTEXT, 0, 0),
            // A segment longer than its header contains data.
            jump(libc::BPF_JGT | libc::BPF_X, R1, R0, 2),
            drop,
            exit,
            keep,
            exit,
        ],
    }
}
