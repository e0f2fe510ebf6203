//! The plan of the claim.

use super::*;

/// The plans of the statements as a worker's transactions make them.
async fn plan(fixture: &Fixture, sql: &str) -> anyhow::Result<String> {
    let settings = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;";
    let sql = format!("{settings} {sql}");
    let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).fetch_all(&fixture.pool).await?;
    let plan: Vec<String> = rows.iter().filter_map(|row| sqlx::Row::try_get(row, 0).ok()).collect();
    Ok(plan.join("\n"))
}

#[tokio::test]
async fn the_claim_uses_its_indexes_among_200_000_waiting_and_a_million_finished() -> anyhow::Result<()> {
    let fixture = fixture().await?;
    let big = fixture.add_store("big", 0).await?;
    for number in 0..50 {
        fixture.add_store(&format!("small{number}"), 2).await?;
    }
    let claim = include_str!("../../../src/queries/claim.sql");
    let prepare = format!(
        "PREPARE claim (bigint, int, bigint, text, int, text, bigint, bigint[], bigint[], int, bigint) AS {claim}"
    );
    let explain = "EXPLAIN EXECUTE claim (0, 8, 4, 'w', 5, 'gave up', 120000, '{}', '{}', 2, 1)";
    let check = |plan: &str| {
        assert!(plan.contains("documents_pending") && plan.contains("documents_processing"), "{plan}");
        assert!(!plan.contains("Seq Scan"), "{plan}");
        assert!(!plan.contains("Index Scan using documents_store on"), "{plan}");
    };
    check(&plan(&fixture, &format!("{prepare}; {explain}")).await?);

    fixture.add_documents(big, 150_000).await?;
    sqlx::query(
        "INSERT INTO documents (store_id, blob_id, size, file_name, media_type, status)
         SELECT $1 + n % 51, (SELECT min(id) FROM blobs), 1, 'file.txt', 'text/plain', 'ready'
           FROM generate_series(1, 1000000) n",
    )
    .bind(big.0)
    .execute(&fixture.pool)
    .await?;
    for number in 0..50 {
        fixture.add_documents(StoreId(big.0 + 1 + number), 1000).await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE documents").execute(&fixture.pool).await?;
    let counts =
        "SELECT count(*) FILTER (WHERE status = 'ready'), count(*) FILTER (WHERE status = 'pending') FROM documents";
    assert_eq!(sqlx::query_as::<_, (i64, i64)>(counts).fetch_one(&fixture.pool).await?, (1_000_000, 200_000));
    check(&plan(&fixture, &format!("DEALLOCATE ALL; {prepare}; {explain}")).await?);
    let claimed = fixture.claim("w", StoreId(0), 8).await?;
    assert_eq!(claimed.documents.iter().filter(|claim| claim.store == big).count(), 1, "one of each store");
    assert_eq!(claimed.documents.len(), 8);
    Ok(())
}
