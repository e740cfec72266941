//! Path control: congestion control, pacing and parallelism for the streams of one path to a peer.
//!
//! No sockets, no clock, no runtime. The caller (`sos-agent`) polls the transport's counters of each stream ten times a second and applies
//! the returned tuning to the stream's socket:
//!
//! ```text
//! PathState::new(Parameters, now)                                 one per path: peer address and label
//! path.add_stream(now) -> stream                                  ids are never reused
//! path.observe(stream, StreamCounters, PathConfig, now) -> SocketTuning
//! path.remove_stream(stream)
//! path.congestion(now) -> CongestionControl                       for a socket that is about to be opened
//! path.decision(now) -> Decision                                  for logs
//! ```
//!
//! Inside one `observe`, in this order:
//!
//! 1. [`sample`] turns the counters of the previous and the current poll into a [`StreamSample`].
//! 2. [`headroom`] and [`parallelism`] take the sample, then [`cc_choice`] (with [`bbr_fallback`]) decides between cubic and bbr, unless
//!    congestion control is configured or a cap needs bbr ([`path_state`]).
//! 3. [`pacing_cap`] takes the sample under the congestion control in force; [`startup`] limits bbr's STARTUP until a cap is learned, and
//!    [`pacing_cap_probe`] raises, lowers and drops the cap.
//! 4. [`path_state`] combines the four results: the smallest limit, divided among the streams that carry bulk, as a [`SocketTuning`].
//!
//! | module | decides |
//! |---|---|
//! | [`sample`] | input: deliveries, losses and queue of one stream since its last poll |
//! | [`tuning`] | output: congestion control, pacing rate, unsent bytes, parallelism; the caller's [`Parameters`] |
//! | [`path_state`] | entry point; combines the modules below |
//! | [`headroom`] | the fifth of the path left to competing traffic |
//! | [`cc_choice`] | cubic or bbr, by the kind of loss |
//! | [`bbr_fallback`] | cubic instead of bbr where bbr overruns a short queue |
//! | [`pacing_cap`] | the aggregate rate cap of a path whose short queue overflows before its delay is measurable |
//! | [`pacing_cap_probe`] | keeping, raising, lowering or dropping a cap |
//! | [`startup`] | the limit on a bbr STARTUP that does not end |
//! | [`parallelism`] | the number of streams that carry bulk |
//! | [`rate_sampler`] | delivery rates of all streams of a path, summed |
//!
//! Dependencies point one way: no module imports [`path_state`]; [`tuning`] imports only [`sample`], and [`sample`] imports no other
//! module.
#![forbid(unsafe_code)]

mod bbr_fallback;
mod cc_choice;
mod headroom;
mod pacing_cap;
mod pacing_cap_probe;
mod parallelism;
mod path_state;
mod rate_sampler;
mod sample;
mod startup;
mod tuning;

pub use path_state::PathState;
pub use sample::{DeliverySample, LossSample, StreamCounters, StreamSample};
pub use tuning::{CongestionControl, Decision, Pacing, Parameters, PathConfig, SocketTuning};
