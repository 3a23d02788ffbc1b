//! How ranks find each other: all come to rank 0, which tells each where the others listen.
//!
//! ```text
//! rank r → rank 0   its rank, how many it counts on, where it listens
//! rank 0 → rank r   where all listen, and a number that others cannot guess; or why not
//! rank r → rank q   for 0 < q < r: its rank and that number
//! ```

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::Meeting;
use crate::error::{CommError, Result};

/// How a rank greets: this, its rank, how many there are, and where it listens or the number of the meeting.
const GREETING: &[u8; 8] = b"plimr-1\n";

/// A greeting, or the answer to one, is no longer than this for each rank.
const TEXT_BYTES: usize = 256;

/// How long one who has connected may take to greet: others wait behind.
const MANNERS: Duration = Duration::from_secs(2);

/// A stream to each rank but this one.
pub fn meet(meeting: &Meeting) -> Result<Vec<Option<TcpStream>>> {
    let Meeting { rank, ranks, .. } = *meeting;
    if rank >= ranks {
        return Err(CommError::Start(format!("there is no rank {rank} among {ranks}")));
    }
    let deadline = Instant::now() + meeting.patience;
    let mut streams: Vec<Option<TcpStream>> = (0..ranks).map(|_| None).collect();
    if ranks > 1 {
        let met = if rank == 0 {
            host(meeting, deadline, &mut streams)
        } else {
            visit(meeting, deadline, &mut streams)
        };
        met.map_err(CommError::Start)?;
    }
    for stream in streams.iter().flatten() {
        let set = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
        set.map_err(|e| CommError::Start(format!("rank {rank} cannot set up a connection: {e}")))?;
    }
    Ok(streams)
}

fn host(meeting: &Meeting, deadline: Instant, streams: &mut [Option<TcpStream>]) -> Result<(), String> {
    let address = &meeting.address;
    let why = |e| {
        format!("rank 0 cannot listen at {address}: {e}; check the master address and that its port is free")
    };
    let places: Vec<SocketAddr> = address.to_socket_addrs().map_err(why)?.collect();
    let listener = TcpListener::bind(&places[..]).map_err(why)?;
    let mut table = vec![String::new(); meeting.ranks];
    let came = accept_all(&listener, deadline, streams, 1..meeting.ranks, |greeting| {
        let is_known = table.get(greeting.rank).is_none_or(|place| !place.is_empty());
        if greeting.ranks != meeting.ranks {
            let (theirs, ours) = (greeting.ranks, meeting.ranks);
            return Err(format!("rank {} counts on {theirs} ranks, and rank 0 on {ours}", greeting.rank));
        } else if greeting.rank == 0 || is_known {
            return Err(format!("there is another rank {}; give each process its own", greeting.rank));
        }
        table[greeting.rank] = greeting.text;
        Ok(())
    });
    if let Err(missing) = came {
        let waited = meeting.patience.as_secs_f64();
        let why = format!(
            "not all ranks have come to {address} within {waited} s: {missing}; check that they were started and reach this address"
        );
        streams.iter_mut().flatten().for_each(|stream| drop(answer(stream, Err(&why))));
        return Err(why);
    }
    let secret = secret();
    let places = format!("{secret} {}", table[1..].join(" "));
    for (rank, stream) in streams.iter_mut().enumerate() {
        let Some(stream) = stream else { continue };
        answer(stream, Ok(&places)).map_err(|e| format!("rank {rank} has left while ranks met: {e}"))?;
    }
    Ok(())
}

fn visit(meeting: &Meeting, deadline: Instant, streams: &mut [Option<TcpStream>]) -> Result<(), String> {
    let (rank, address) = (meeting.rank, &meeting.address);
    let mut stream = reach(address, deadline).map_err(|e| {
        format!(
            "rank {rank} cannot reach rank 0 at {address} within {} s: {e}",
            meeting.patience.as_secs_f64()
        )
    })?;
    let lost = |e: io::Error| format!("rank {rank} lost rank 0 while ranks met: {e}");
    let mut own = stream.local_addr().map_err(lost)?;
    own.set_port(0);
    let listener = TcpListener::bind(own).map_err(|e| format!("rank {rank} cannot listen at {own}: {e}"))?;
    let place = listener.local_addr().map_err(lost)?.to_string();
    greet(&mut stream, meeting, &place).map_err(lost)?;
    // Rank 0 answers when its own patience is over, too.
    let places = answered(&mut stream, meeting.ranks, deadline + MANNERS).map_err(lost)??;
    streams[0] = Some(stream);
    let (secret, places) = places.split_once(' ').unwrap_or((&places, ""));
    let places: Vec<&str> = places.split(' ').collect();
    for (other, place) in (1..rank).zip(&places) {
        let lost = |e: io::Error| format!("rank {rank} cannot reach rank {other} at {place}: {e}");
        let mut stream = reach(place, deadline).map_err(lost)?;
        greet(&mut stream, meeting, secret).map_err(lost)?;
        streams[other] = Some(stream);
    }
    accept_all(&listener, deadline, streams, rank + 1..meeting.ranks, |greeting| {
        let is_one = greeting.text == secret && greeting.rank > rank;
        if is_one { Ok(()) } else { Err("this is no place to meet".into()) }
    })
    .map_err(|missing| format!("rank {rank} was not reached in time: {missing}"))
}

struct Greeting {
    rank: usize,
    ranks: usize,
    text: String,
}

/// Accepts until a stream of each rank of the range is there; those that are missing, otherwise. Strangers are sent away.
fn accept_all(
    listener: &TcpListener,
    deadline: Instant,
    streams: &mut [Option<TcpStream>],
    wanted: std::ops::Range<usize>,
    mut check: impl FnMut(Greeting) -> Result<(), String>,
) -> Result<(), String> {
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    let mut refused = String::new();
    while streams[wanted.clone()].iter().any(Option::is_none) {
        if Instant::now() >= deadline {
            let missing = wanted.filter(|rank| streams[*rank].is_none()).map(|rank| format!("rank {rank}"));
            return Err(format!("missing: {}{refused}", missing.collect::<Vec<_>>().join(", ")));
        }
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        let Ok(greeting) = greeted(&mut stream, deadline.min(Instant::now() + MANNERS)) else { continue };
        let rank = greeting.rank;
        match check(greeting) {
            Ok(()) if wanted.contains(&rank) => streams[rank] = Some(stream),
            Ok(()) => {}
            Err(why) => {
                refused = format!(" ({why})");
                drop(answer(&mut stream, Err(&why)));
            }
        }
    }
    Ok(())
}

/// Connects, again and again: the other side may not listen yet.
fn reach(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the address has no machine");
        for place in address.to_socket_addrs().into_iter().flatten() {
            match connected(place, left) {
                Ok(stream) => return Ok(stream),
                Err(e) => failed = e,
            }
        }
        if Instant::now() >= deadline {
            return Err(failed);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A stream to who listens there. Where nobody does yet, the system may give this end the very port it looks for: it then reaches itself,
/// and whoever wants to listen there finds the port taken.
fn connected(place: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&place, within)?;
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn greet(stream: &mut TcpStream, meeting: &Meeting, text: &str) -> io::Result<()> {
    let mut bytes = GREETING.to_vec();
    bytes.extend((meeting.rank as u32).to_le_bytes());
    bytes.extend((meeting.ranks as u32).to_le_bytes());
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    stream.write_all(&bytes)
}

fn greeted(stream: &mut TcpStream, deadline: Instant) -> io::Result<Greeting> {
    let mut head = [0; 20];
    read(stream, &mut head, deadline)?;
    let word = |at: usize| head[at..at + 4].iter().rev().fold(0, |all, byte| all << 8 | usize::from(*byte));
    let (rank, ranks, len) = (word(8), word(12), word(16));
    if &head[..8] != GREETING || len > TEXT_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no rank"));
    }
    Ok(Greeting { rank, ranks, text: text(stream, len, deadline)? })
}

fn answer(stream: &mut TcpStream, said: Result<&str, &str>) -> io::Result<()> {
    let text = said.unwrap_or_else(|why| why);
    let mut bytes = vec![u8::from(said.is_ok())];
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    stream.write_all(&bytes)
}

fn answered(stream: &mut TcpStream, ranks: usize, deadline: Instant) -> io::Result<Result<String, String>> {
    let mut head = [0; 5];
    read(stream, &mut head, deadline)?;
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if len > TEXT_BYTES.saturating_mul(ranks + 4) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no rank"));
    }
    let text = text(stream, len, deadline)?;
    Ok(if head[0] == 1 { Ok(text) } else { Err(format!("rank 0 said: {text}")) })
}

fn text(stream: &mut TcpStream, len: usize, deadline: Instant) -> io::Result<String> {
    let mut bytes = vec![0; len];
    read(stream, &mut bytes, deadline)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn read(stream: &mut TcpStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => bytes = &mut bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A number that tells this meeting from others on the same machines.
fn secret() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_waits_for_another_never_reaches_itself() {
        let within = Duration::from_secs(1);
        // Ports go to who connects one after the other: the one that is looked for comes up.
        let place = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let itself = (0..100_000).find_map(|_| TcpStream::connect_timeout(&place, within).ok());
        let Some(itself) = itself else { return };
        if itself.local_addr().unwrap() == itself.peer_addr().unwrap() {
            drop(itself);
            assert!((0..50_000).all(|_| connected(place, within).is_err()));
        }
    }
}
