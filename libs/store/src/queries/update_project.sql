-- One statement, so that admission never waits for more than it on the project's row.
WITH changed AS (
    UPDATE projects p
       SET name = $3, default_route_id = $4, store_id = $5, system_prompt = $6, strict_models = $7, allow_unpriced = $8,
           enforcement = $9, time_zone = $10, requests_per_minute = $11, tokens_per_minute = $12, tokens_per_day = $13,
           tokens_per_month = $14, cost_per_day = $15, cost_per_month = $16, concurrent_requests = $17,
           -- Members of a later build stay.
           retrieval = p.retrieval || $20,
           revision = revision + 1, updated_at = clock_timestamp()
     WHERE p.id = $1 AND p.revision = $2 AND can_reach_project(p.id, $18)
       AND ($4::bigint IS NULL OR EXISTS (SELECT FROM routes r WHERE r.id = $4 AND r.project_id = p.id))
       AND ($5::bigint IS NULL
            OR EXISTS (SELECT FROM document_stores s WHERE s.id = $5 AND s.deleted_at IS NULL AND s.project_id = p.id)
            OR EXISTS (SELECT FROM project_stores g WHERE g.store_id = $5 AND g.project_id = p.id))
    RETURNING id)
SELECT record_change('project', id, $19) FROM changed
