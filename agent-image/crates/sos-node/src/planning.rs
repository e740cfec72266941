//! Planning: the difference between the observed state and the node-config, and the changes that remove it. Pure.
//!
//! Order of calls, all by `crate::edge::node`:
//!
//! 1. [`local`] compares the local port's addresses with the remembered addresses, as a part of the observation.
//! 2. [`plan::plan`] has [`desired`] convert the node-config to Open vSwitch's ports and rows ([`datapath`] chooses the type of the bridge's
//!    datapath, [`vlan`] adds entries for ports in other VLANs), and returns [`change::Change`]s and [`problem::Problem`]s.
//! 3. If anchors are configured, [`trial::one_at_a_time`] selects the changes with one new uplink, whose trial begins.
//!
//! | module | contains |
//! |---|---|
//! | [`desired`] | the desired ports, bridge and controllers |
//! | [`datapath`] | the type of the bridge's datapath, and the owner of the kernel's datapath |
//! | [`vlan`] | entries for ports whose untagged frames are in another VLAN |
//! | [`plan`] (`bond`, `refusal`, `reject`, `tunnels`) | the difference, in an order that avoids forwarding loops |
//! | [`change`], [`problem`] | changes, and problems that no change solves |
//! | [`trial`] | uplinks on trial |
//! | [`local`] | addresses that the bridge's local port lost in a restart of Open vSwitch |
//! | [`orphan`] | the decision at SIGTERM: leave the bridge, or remove it because its site has no operator any more |

pub mod change;
pub mod datapath;
pub mod desired;
pub mod local;
pub mod orphan;
pub mod plan;
pub mod problem;
pub mod trial;
pub mod vlan;
