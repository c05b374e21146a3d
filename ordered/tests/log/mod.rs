//! The log on disk: on disks that crash, tear, rot and fill, and on real ones.

mod asides;
mod crashes;
mod damage;
mod files;
mod marks;
mod model;
mod offline;
mod readers;
mod refusals;
mod scrub;
mod signatures;
mod signed_crashes;
mod snapshots;
mod use_cases;
