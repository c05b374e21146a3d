//! RDMC: a reliable multicast of large messages, made of point-to-point transfers of blocks.

pub mod schedule;
