//! A database in process: a test says what each statement does to a state of its own; the host knows transactions, faults and who is down.

use super::FakeHost;
use crate::{
    host::Transaction,
    sql::{Rows, SqlError, Statement, Value},
};
use std::{any::Any, cell::RefCell};

/// What a statement did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// What it answers.
    pub rows: Rows,
    /// How many rows it changed.
    pub changed: u64,
}

/// The state behind a database, and what statements do to it. A transaction works on a clone.
pub trait FakeDatabase: Clone + 'static {
    /// Runs one statement.
    fn run(&mut self, sql: &str, parameters: &[Value]) -> Result<Answer, SqlError>;
}

/// A [`FakeDatabase`] without its type.
pub(super) trait State {
    fn run(&mut self, statement: &Statement) -> Result<Answer, SqlError>;
    fn fork(&self) -> Box<dyn State>;
    fn any(&mut self) -> &mut dyn Any;
}

impl<D: FakeDatabase> State for D {
    fn run(&mut self, statement: &Statement) -> Result<Answer, SqlError> {
        FakeDatabase::run(self, &statement.sql, &statement.parameters)
    }

    fn fork(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn any(&mut self) -> &mut dyn Any {
        self
    }
}

/// What stands behind a database's name.
pub(super) struct Server {
    pub(super) state: Box<dyn State>,
    pub(super) down: Option<SqlError>,
}

/// A transaction in process.
pub struct FakeTransaction {
    host: FakeHost,
    database: String,
    /// The state as this transaction sees it; none once it has ended.
    state: RefCell<Option<Box<dyn State>>>,
    failed: RefCell<bool>,
}

impl FakeTransaction {
    pub(super) fn begin(host: FakeHost, database: &str, server: &Server) -> Self {
        let state = RefCell::new(Some(server.state.fork()));
        Self { host, database: database.to_owned(), state, failed: RefCell::new(false) }
    }

    async fn run(&self, statement: Statement) -> Result<Answer, SqlError> {
        self.host
            .call(lost, async || {
                self.host.up(&self.database)?;
                self.host.state.borrow_mut().statements.push(statement.sql.clone());
                if *self.failed.borrow() {
                    return Err(aborted());
                }
                let mut state = self.state.borrow_mut();
                let answer = state.as_mut().ok_or_else(ended)?.run(&statement);
                *self.failed.borrow_mut() |= answer.is_err();
                answer
            })
            .await
    }

    async fn end(&self, commit: bool) -> Result<(), SqlError> {
        self.host
            .call(lost, async || {
                let state = self.state.borrow_mut().take().ok_or_else(ended)?;
                self.host.up(&self.database)?;
                if !commit {
                    return Ok(());
                }
                if *self.failed.borrow() {
                    return Err(aborted());
                }
                if let Some(server) = self.host.state.borrow_mut().databases.get_mut(&self.database) {
                    server.state = state;
                }
                Ok(())
            })
            .await
    }
}

impl Transaction for FakeTransaction {
    async fn query(&self, statement: Statement) -> Result<Rows, SqlError> {
        Ok(self.run(statement).await?.rows)
    }

    async fn execute(&self, statement: Statement) -> Result<u64, SqlError> {
        Ok(self.run(statement).await?.changed)
    }

    async fn commit(&self) -> Result<(), SqlError> {
        self.end(true).await
    }

    async fn rollback(&self) -> Result<(), SqlError> {
        self.end(false).await
    }
}

impl FakeHost {
    /// Puts a database behind a name.
    pub fn database<D: FakeDatabase>(&self, name: &str, state: D) {
        let server = Server { state: Box::new(state), down: None };
        self.state.borrow_mut().databases.insert(name.to_owned(), server);
    }

    /// Looks at the state of a database, or changes it as somebody else would.
    pub fn in_database<D: FakeDatabase, T>(&self, name: &str, look: impl FnOnce(&mut D) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let server = state.databases.get_mut(name).unwrap_or_else(|| panic!("no database {name}"));
        let Some(database) = (*server.state).any().downcast_mut() else { panic!("database {name} is of another type") };
        look(database)
    }

    /// Makes every statement on a database fail, or none any more.
    pub fn take_database_down(&self, name: &str, error: Option<SqlError>) {
        if let Some(server) = self.state.borrow_mut().databases.get_mut(name) {
            server.down = error;
        }
    }

    /// The statements that reached a database since the last call.
    pub fn take_statements(&self) -> Vec<String> {
        std::mem::take(&mut self.state.borrow_mut().statements)
    }

    /// Fails unless the database is granted and up.
    pub(super) fn up(&self, database: &str) -> Result<(), SqlError> {
        match self.state.borrow().databases.get(database) {
            None => Err(SqlError::Denied(format!("database {database:?} is not granted"))),
            Some(Server { down: Some(error), .. }) => Err(error.clone()),
            Some(_) => Ok(()),
        }
    }

    pub(super) async fn run(&self, database: &str, statement: Statement) -> Result<Answer, SqlError> {
        self.call(lost, async || {
            self.up(database)?;
            let mut state = self.state.borrow_mut();
            state.statements.push(statement.sql.clone());
            let Some(server) = state.databases.get_mut(database) else { return Ok(Answer::default()) };
            // A statement that fails has no effect.
            let mut next = server.state.fork();
            let answer = next.run(&statement)?;
            server.state = next;
            Ok(answer)
        })
        .await
    }
}

pub(super) fn lost() -> SqlError {
    SqlError::Unavailable("cut by the test".to_owned())
}

fn ended() -> SqlError {
    SqlError::Invalid("the transaction has ended".to_owned())
}

fn aborted() -> SqlError {
    let message = "current transaction is aborted".to_owned();
    SqlError::Database { sqlstate: "25P02".to_owned(), message, more: Vec::new() }
}
