//! A link: two directions, their specification, and changes at run time.

use crate::config::{Direction, DirectionChange, DirectionSpec, LinkSpec, queue_bytes};
use crate::shaper::{Limits, Shape, Shaper};
use crate::stats::DirectionStats;
use crate::units::Nanos;

/// Both directions of one link.
#[derive(Debug)]
pub struct Link {
    spec: LinkSpec,
    shapers: [Shaper; 2],
}

/// Spreads one seed over links and directions (the odd constant is 2^64 divided by the golden ratio).
fn direction_seed(seed: u64, index: usize, direction: Direction) -> u64 {
    let position = (index * 2 + direction.index() + 1) as u64;
    seed.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn shape(directions: &[DirectionSpec; 2], direction: Direction) -> Shape {
    let spec = &directions[direction.index()];
    Shape {
        rate_bps: spec.rate_bps,
        delay: spec.delay,
        loss: spec.loss,
        queue_bytes: queue_bytes(directions, direction),
    }
}

impl Link {
    /// Create the link with number `index` of this process. `seed` determines the lost packets.
    pub fn new(spec: LinkSpec, index: usize, limits: Limits, seed: u64) -> Link {
        let shapers = Direction::BOTH.map(|d| {
            let shape = shape(&spec.directions, d);
            Shaper::new(shape, limits, direction_seed(seed, index, d))
        });
        Link { spec, shapers }
    }

    /// Its name in the control protocol.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Names of interfaces A and B.
    pub fn ends(&self) -> &[String; 2] {
        &self.spec.ends
    }

    /// One direction.
    pub fn shaper(&self, direction: Direction) -> &Shaper {
        &self.shapers[direction.index()]
    }

    /// One direction, for enqueuing and delivering frames.
    pub fn shaper_mut(&mut self, direction: Direction) -> &mut Shaper {
        &mut self.shapers[direction.index()]
    }

    /// Change one direction, or both. A queue given as `bdp` or as a time follows rate and delay.
    pub fn change(&mut self, now: Nanos, which: Option<Direction>, change: DirectionChange) {
        for direction in affected(which) {
            let spec = &mut self.spec.directions[direction.index()];
            *spec = change.apply(*spec);
        }
        for direction in Direction::BOTH {
            let wanted = shape(&self.spec.directions, direction);
            let shaper = self.shaper_mut(direction);
            if *shaper.shape() != wanted {
                shaper.reshape(now, wanted);
            }
        }
    }

    /// Cut or repair one direction, or both.
    pub fn set_down(&mut self, which: Option<Direction>, down: bool) {
        for direction in affected(which) {
            self.shaper_mut(direction).set_down(down);
        }
    }

    /// Statistics of one direction.
    pub fn stats(&self, now: Nanos, direction: Direction) -> DirectionStats {
        self.shaper(direction).stats(now)
    }
}

fn affected(which: Option<Direction>) -> Vec<Direction> {
    which.map_or_else(|| Direction::BOTH.to_vec(), |d| vec![d])
}
