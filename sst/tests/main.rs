//! Tests of tables: in the simulator, and against a member that writes where it may not.

mod hostile;
mod table;
