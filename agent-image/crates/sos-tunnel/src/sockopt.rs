//! The two things about sockets that no crate in use offers safely. The only unsafe code here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use bytes::BytesMut;
use socket2::SockRef;
use tokio::net::TcpStream;

/// Sets SO_RCVLOWAT: a poll reports data only when there is this much (socket(7)), the end and errors at once. The kernel caps it at half
/// of the receive buffer's limit, and reports anyway when the window is full.
pub(crate) fn set_receive_low_water(socket: &TcpStream, bytes: i32) -> io::Result<()> {
    let (value, len) = ((&raw const bytes).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and `value` points to `len` bytes.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads what is there into the free space of `buffer`, without asking the runtime whether there is something: below the low water mark
/// it does not know. 0 = the end. The buffer must have free space.
pub(crate) fn receive_now(socket: &TcpStream, buffer: &mut BytesMut) -> io::Result<usize> {
    let read = SockRef::from(socket).recv(buffer.spare_capacity_mut())?;
    // SAFETY: `recv` has written `read` bytes at the beginning of the free space.
    unsafe { buffer.set_len(buffer.len() + read) };
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn below_the_mark_nothing_is_reported_and_everything_is_readable() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let far = listener.accept().await.unwrap().0;
        // The runtime believes a new socket to be readable until told otherwise.
        assert_eq!(far.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        set_receive_low_water(&far, 1000).unwrap();
        near.write_all(&[7; 999]).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(100), far.readable()).await.is_err());
        let mut buffer = BytesMut::with_capacity(2000);
        assert_eq!(receive_now(&far, &mut buffer).unwrap(), 999);
        assert_eq!(buffer, vec![7; 999]);
        assert_eq!(receive_now(&far, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.write_all(&[7; 1000]).await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), far.readable()).await.unwrap().unwrap();
    }
}
