//! Values on the wire: each parameter declares its type, so that a statement takes one round trip and leaves nothing prepared behind.

use operetta_core::port::database::{SqlError, SqlValue};
use tokio_postgres::{
    Row,
    types::{Format, FromSql, IsNull, Kind, ToSql, Type, private::BytesMut, to_sql_checked},
};

type BoxError = Box<dyn std::error::Error + Sync + Send>;

/// What a parameter's type is called in the statement. Text has none, as a literal in quotes has none: the database finds it out.
pub(super) fn declared(value: &SqlValue) -> Type {
    match value {
        SqlValue::Null | SqlValue::Text(_) => Type::UNKNOWN,
        SqlValue::Boolean(_) => Type::BOOL,
        SqlValue::Integer(_) => Type::INT8,
        SqlValue::Float(_) => Type::FLOAT8,
        SqlValue::Bytes(_) => Type::BYTEA,
    }
}

/// A parameter.
#[derive(Debug)]
pub(super) struct Param<'a>(pub(super) &'a SqlValue);

impl ToSql for Param<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        match self.0 {
            SqlValue::Null => Ok(IsNull::Yes),
            SqlValue::Boolean(value) => value.to_sql(ty, out),
            SqlValue::Integer(value) => value.to_sql(ty, out),
            SqlValue::Float(value) => value.to_sql(ty, out),
            SqlValue::Text(value) => {
                out.extend_from_slice(value.as_bytes());
                Ok(IsNull::No)
            }
            SqlValue::Bytes(value) => value.as_slice().to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        if matches!(self.0, SqlValue::Text(_)) { Format::Text } else { Format::Binary }
    }

    to_sql_checked!();
}

/// The values of a row.
pub(super) fn read(row: &Row) -> Result<Vec<SqlValue>, SqlError> {
    let value = |(position, column): (usize, &tokio_postgres::Column)| {
        row.try_get::<_, Option<Read>>(position).map(|value| value.map_or(SqlValue::Null, |Read(value)| value)).map_err(
            |_| {
                SqlError::Unsupported(format!(
                    "column {:?} is of type {}; cast it, such as {0:?}::text",
                    column.name(),
                    column.type_()
                ))
            },
        )
    };
    row.columns().iter().enumerate().map(value).collect()
}

/// A value of a column.
struct Read(SqlValue);

impl<'a> FromSql<'a> for Read {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        Ok(Self(match *ty {
            Type::BOOL => SqlValue::Boolean(bool::from_sql(ty, raw)?),
            Type::INT2 => SqlValue::Integer(i16::from_sql(ty, raw)?.into()),
            Type::INT4 => SqlValue::Integer(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => SqlValue::Integer(i64::from_sql(ty, raw)?),
            Type::FLOAT4 => SqlValue::Float(f32::from_sql(ty, raw)?.into()),
            Type::FLOAT8 => SqlValue::Float(f64::from_sql(ty, raw)?),
            Type::BYTEA => SqlValue::Bytes(raw.to_vec()),
            Type::UUID => SqlValue::Text(uuid(raw)),
            // What a function answers that answers nothing.
            Type::VOID => SqlValue::Null,
            // A version number stands before the text.
            Type::JSONB => SqlValue::Text(text(raw.get(1..).unwrap_or_default())?),
            _ => SqlValue::Text(text(raw)?),
        }))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(
            *ty,
            Type::BOOL
                | Type::INT2
                | Type::INT4
                | Type::INT8
                | Type::FLOAT4
                | Type::FLOAT8
                | Type::BYTEA
                | Type::UUID
                | Type::JSON
                | Type::JSONB
                | Type::TEXT
                | Type::VARCHAR
                | Type::BPCHAR
                | Type::NAME
                | Type::UNKNOWN
                | Type::VOID
        ) || matches!(ty.kind(), Kind::Enum(_))
    }
}

fn text(raw: &[u8]) -> Result<String, BoxError> {
    Ok(std::str::from_utf8(raw)?.to_owned())
}

fn uuid(raw: &[u8]) -> String {
    raw.iter().enumerate().fold(String::with_capacity(36), |mut text, (position, byte)| {
        if matches!(position, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
        text
    })
}
