//! Handshake of an encrypted stream, on both sides. The callers bound its time.

use std::sync::Arc;

use bytes::{Buf, BufMut, BytesMut};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{Error, ExtractedSecrets, SupportedCipherSuite};
use sos_wire::{Key, StreamEndpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::config::{self, Expected, FindKey};
use super::identity::Identity;
use super::record::{Opener, Sealer};
use super::{PairKeyName, TlsError, server_name};

/// Maximum number of bytes buffered for the handshake: a record of the maximum size. Less than 2 KiB is needed.
const MAX_INCOMING: usize = 17 << 10;

/// Runs the dialer's side. `name` is the acceptor's name for the pair key; it contains this agent's site.
pub(crate) async fn dial(
    socket: &mut TcpStream,
    key: &Key,
    name: PairKeyName,
) -> Result<(Sealer, Opener), TlsError> {
    let config = config::client(Identity::derive(key, StreamEndpoint::Dialer)?)?;
    let to = ServerName::try_from(server_name(name)).map_err(|_| Error::General("server name".to_owned()))?;
    shake(socket, UnbufferedClientConnection::new(Arc::new(config), to)?).await
}

/// Runs the acceptor's side. `find` looks up the pair key that the dialer names, if the dialer may name this key. The second part of the
/// result is the name of this key.
pub(crate) async fn accept(
    socket: &mut TcpStream,
    find: FindKey,
) -> Result<((Sealer, Opener), PairKeyName), TlsError> {
    let expected = Expected::new(find);
    let config = config::server(&expected)?;
    let halves = shake(socket, UnbufferedServerConnection::new(Arc::new(config))?).await?;
    let name = expected.named().ok_or(TlsError::Closed)?;
    Ok((halves, *name))
}

/// State machine of either side; rustls has a type for each.
pub(super) trait Side: Send {
    type Data;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn suite(&self) -> Option<SupportedCipherSuite>;
    fn secrets(self) -> Result<ExtractedSecrets, Error>;
}

macro_rules! side {
    ($connection:ty, $data:ty) => {
        impl Side for $connection {
            type Data = $data;

            fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
                self.process_tls_records(incoming)
            }

            fn suite(&self) -> Option<SupportedCipherSuite> {
                self.negotiated_cipher_suite()
            }

            fn secrets(self) -> Result<ExtractedSecrets, Error> {
                self.dangerous_into_kernel_connection().map(|(secrets, _)| secrets)
            }
        }
    };
}

side!(UnbufferedClientConnection, ClientConnectionData);
side!(UnbufferedServerConnection, ServerConnectionData);

/// Next step of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Nothing,
    Write,
    Read,
    Finish,
}

#[derive(Default)]
struct Buffers {
    incoming: BytesMut,
    outgoing: Vec<u8>,
    /// Bytes of the stream that arrived with the end of the handshake.
    early: BytesMut,
}

pub(super) async fn shake<S: Side>(
    socket: &mut TcpStream,
    mut side: S,
) -> Result<(Sealer, Opener), TlsError> {
    let mut buffers = Buffers::default();
    loop {
        match buffers.step(&mut side)? {
            Next::Nothing => {}
            Next::Write => {
                socket.write_all(&buffers.outgoing).await?;
                buffers.outgoing.clear();
            }
            Next::Read => {
                let room = MAX_INCOMING - buffers.incoming.len();
                if room == 0 || buffers.early.len() > MAX_INCOMING {
                    return Err(TlsError::TooLong);
                }
                if socket.read_buf(&mut (&mut buffers.incoming).limit(room)).await? == 0 {
                    return Err(TlsError::Closed);
                }
            }
            Next::Finish => break,
        }
    }
    let suite = side.suite().ok_or(Error::HandshakeNotComplete)?;
    let secrets = side.secrets()?;
    let opener = Opener::new(secrets.rx, suite, &buffers.early, &buffers.incoming)?;
    Ok((Sealer::new(secrets.tx, suite)?, opener))
}

impl Buffers {
    fn step<S: Side>(&mut self, side: &mut S) -> Result<Next, TlsError> {
        let UnbufferedStatus { discard, state, .. } = side.process(&mut self.incoming);
        let next = match state? {
            ConnectionState::EncodeTlsData(mut data) => {
                encode(&mut data, &mut self.outgoing)?;
                Next::Nothing
            }
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Next::Write
            }
            ConnectionState::BlockedHandshake => Next::Read,
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    self.early.extend_from_slice(record?.payload);
                }
                Next::Nothing
            }
            ConnectionState::WriteTraffic(_) => Next::Finish,
            _ => return Err(TlsError::Closed),
        };
        self.incoming.advance(discard);
        Ok(next)
    }
}

/// Appends a handshake record.
fn encode<D>(data: &mut EncodeTlsData<'_, D>, outgoing: &mut Vec<u8>) -> Result<(), Error> {
    let from = outgoing.len();
    let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut []) else {
        return Err(Error::General("an empty record".to_owned()));
    };
    outgoing.resize(from + size.required_size, 0);
    data.encode(&mut outgoing[from..]).map_err(|error| Error::General(error.to_string()))?;
    Ok(())
}
