//! Policy: which flows the agent relays, over which streams, and what it reports. Pure.

pub mod arming;
pub mod classifier;
pub mod flow_key;
pub mod flow_policy;
pub mod load;
pub mod plain_traffic;
pub mod service_meters;
pub mod stream_pool;
