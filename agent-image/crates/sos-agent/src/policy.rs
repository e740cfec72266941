//! Policy: the flows that the agent relays, their streams, and the reports about them. Pure.

pub mod arming;
pub mod classifier;
pub mod flow_key;
pub mod flow_policy;
pub mod latest_willing;
pub mod load;
pub mod plain_traffic;
pub mod proxy_protocol;
pub mod service_meters;
pub mod session_shares;
pub mod slots;
pub mod stream_pool;
