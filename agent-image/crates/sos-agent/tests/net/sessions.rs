//! Sessions between two agents: `transfer` (success), `ends` (errors, killed agents, draining), `full` and `shares` (limits).

mod ends;
mod full;
mod shares;
mod transfer;
